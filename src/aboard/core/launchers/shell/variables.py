"""The variables of a script, and values that are known only while a job runs."""

import re
from collections.abc import Mapping, Sequence
from copy import copy

# An unknown value is its name between these characters, with a blank that splits no word. No script may contain them.
_OPEN, _CLOSE, _BLANK = "\ue000", "\ue001", "\ue002"
_UNKNOWN = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_MARKER = re.compile(rf"[{_OPEN}{_CLOSE}{_BLANK}]|\\ue00[012]")
HIDDEN = "?"


def mark_unknown(name: str) -> str:
    """A text that stands for a value known only at run time."""
    return _OPEN + re.sub(r"\s+", _BLANK, format_unknown(name)) + _CLOSE


def list_unknown(text: str) -> list[str]:
    """The names of the unknown values in a text."""
    return [name.replace(_BLANK, " ") for name in _UNKNOWN.findall(text)]


def find_unknown(text: str) -> str | None:
    """The name of the first unknown value in a text."""
    return next(iter(list_unknown(text)), None)


def format_unknown(text: str) -> str:
    """The text with each unknown value as `$NAME`, for a person to read."""
    return _UNKNOWN.sub(lambda match: "$" + match[1].replace(_BLANK, " "), text)


def hide_unknown(text: str) -> str:
    """The text with each unknown value as a question mark, which is in no address."""
    return _UNKNOWN.sub(HIDDEN, text)


def shows_unknown(text: str) -> bool:
    """Whether a message has an unknown value in it, as it is or escaped."""
    return _MARKER.search(text) is not None


def has_marker_characters(text: str) -> bool:
    """Whether a script could forge an unknown value."""
    return any(character in text for character in (_OPEN, _CLOSE, _BLANK))


class Variables:
    """The variables of a shell: its own, those that children inherit, arrays, and the script's arguments."""

    def __init__(
        self,
        environ: Mapping[str, str],
        arguments: Sequence[str] = (),
        unknown: frozenset[str] = frozenset(),
        *,
        script: str = "bash",
    ) -> None:
        self._values = {**environ, **{name: mark_unknown(name) for name in unknown}}
        self._inherited = frozenset(self._values)
        self.exported: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {"BASH_SOURCE": [script]}
        self.script = script
        self.arguments = list(arguments)
        # After commands such as `module load`, variables with such names may have a value.
        self._maybe_set: re.Pattern[str] | None = None

    def get(self, name: str) -> str | None:
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else None
        value = self._values.get(name)
        if value is None and self._maybe_set is not None and self._maybe_set.fullmatch(name):
            return mark_unknown(name)
        return value

    def set(self, name: str, value: str) -> None:
        self.arrays.pop(name, None)
        self._values[name] = value
        if name in self.exported or name in self._inherited:
            self.exported[name] = value

    def set_array(self, name: str, values: Sequence[str]) -> None:
        self._values.pop(name, None)
        self.arrays[name] = list(values)

    def export(self, name: str) -> None:
        value = self._values.get(name)
        if value is not None:
            self.exported[name] = value

    def unset(self, name: str) -> None:
        for held in (self._values, self.exported, self.arrays):
            held.pop(name, None)

    def save(self) -> dict[str, object]:
        """The state to `restore` if a part of the script can't be followed."""
        return {name: copy(value) for name, value in vars(self).items()}

    def restore(self, saved: Mapping[str, object]) -> None:
        vars(self).update(saved)

    def forget(self, names: frozenset[str], maybe_set: re.Pattern[str]) -> None:
        """Marks variables that a command changed as unknown, and those without a value that it may have set."""
        self._maybe_set = maybe_set
        for name in names - self.exported.keys():
            self._values[name] = mark_unknown(name)
