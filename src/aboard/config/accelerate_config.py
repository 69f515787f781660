"""Reads files on the head for pasted commands, including accelerate's config file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aboard.config.allowed_files import read_launcher_file
from aboard.config.input_files import read_text
from aboard.config.yaml_tree import Leaf, Table, convert_to_builtins, parse_tree
from aboard.core.launchers.accelerate.accelerate_flags import KEYS, NUMBERS, SECTIONS
from aboard.core.text.input_text import suggest_fix
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration, pasted_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class HeadFiles:
    """The head's files, for `aboard.core.launchers`; with `allow_file`, those that it finds are allowed.

    Relative paths start in `cwd`.
    """

    def __init__(self, *, allow_file: bool = False, cwd: str = "") -> None:
        self._allow_file = allow_file
        self._cwd = cwd

    def exists(self, path: str) -> bool:
        try:
            return Path(self._find(path)).is_file()
        except (OSError, RuntimeError, ValueError):  # no home, a NUL in the path, no permission
            return False

    def read(self, path: str) -> str:
        fix = configuration.FILE.fix("left-out")
        return read_launcher_file(self._find(path), fix=fix, allow_file=self._allow_file)

    def settings(self, path: str) -> "Mapping[str, object]":
        fix = configuration.FILE.fix("accelerate", path=path)
        return parse_accelerate_config(read_text(self._find(path), fix=fix), file=path)

    def _find(self, path: str) -> str:
        # A file that is found by its name (.deepspeed_env) is known by it.
        return str(Path(self._cwd) / _expand_home(path))


def parse_accelerate_config(text: str, file: str) -> dict[str, Any]:
    """The file's values; all unknown keys and values of the wrong type are reported at once, with their lines.

    JSON works too, as it is YAML. A value that is a boolean in YAML 1.1 but text in 1.2 (`no`) stays text here, and
    accelerate reads it as its author meant.
    """
    tree = parse_tree(text, file=file)
    problems = list(_find_problems(tree, file))
    if problems:
        raise InputError(pasted_commands.CONFIG, problems)
    return dict(convert_to_builtins(tree))


def _expand_home(path: str) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError:  # the user has no home
        return path


def _find_problems(tree: Table, file: str) -> "Iterator[Problem]":
    for key, value in tree.values.items():
        place = tree.keys[key]
        empty = isinstance(value, Leaf) and value.value is None
        if key not in KEYS:
            seen = f"accelerate has no key '{escape_text(key)}'"
            yield Problem(where=place, seen=seen, fix=suggest_fix(pasted_commands.CONFIG, key, sorted(KEYS)))
        elif key in SECTIONS and not empty and not isinstance(value, Table):
            seen = f"{key} must be a section with keys below it"
            yield Problem(where=place, seen=seen, fix=pasted_commands.CONFIG.fix("section", key=key))
        elif key in NUMBERS and not empty and not (isinstance(value, Leaf) and type(value.value) is int):
            fix = pasted_commands.CONFIG.fix("number", key=key)
            yield Problem(where=value.where, seen=f"{key} must be a whole number", fix=fix)
    if "distributed_type" not in tree.values:
        seen = "distributed_type is missing, and accelerate requires it"
        yield Problem(where=file, seen=seen, fix=pasted_commands.CONFIG.fix("type"))
