"""Finds secrets in text by their shape, or by what stands beside them.

Every word that a rule looks for costs a pass over the text, so the rules share few words, and what surrounds a hit
decides. Each pattern is bounded: hostile text takes linear time.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from aboard.core.secrets.private_keys import Span, find_private_keys, mentions_private_key
from aboard.core.secrets.secret_assignments import find_assigned_secrets, judge_value
from aboard.core.secrets.secret_commands import find_command_secrets
from aboard.core.secrets.secret_tokens import asks_for_key, find_tokens, list_runs
from aboard.core.secrets.secret_urls import find_url_secrets

_WINDOW = 1 << 17
# A secret of a line without end that is longer than this is found in part.
_OVERLAP = 8192
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MOST_SHAPES = 20_000
# Shorter lines may belong to the next one, as those of a netrc do, and are cheap.
_SHORTEST_SHAPE = 40
# Colours, also as `repr` and JSON write them, which may stand anywhere in a secret.
_STYLE = re.compile(rb"(?:\x1b|\\x1b|\\u001b)\[[0-9;:]{0,40}[mK]")
_STYLE_ANCHOR = b"1b["
# What stands around names, values and lines of keys in tables and boxes, in ASCII of the same length.
_SIGNS = {
    **dict.fromkeys("│┃║▏▕", b" | "),
    **dict.fromkeys("→⇒➜", b"-> "),
    **dict.fromkeys("\uff1a\uff1d", b"=  "),
    "\u2003": b"   ",
    "\u00a0": b"  ",
}
_FOREIGN_SIGN = re.compile("|".join(_SIGNS).encode())


class SecretFinder:
    """Finds secrets. Lines that differ only in digits from one without a secret have none: most lines of a log."""

    def __init__(self) -> None:
        self._innocent: set[bytes] = set()
        # Parts of keys that were found: a message may quote a line of a key.
        self._keys: set[bytes] = set()

    def find(self, data: bytes, *, cut: bool = False) -> list[Span]:
        """The places of all secrets, in order, without overlaps; `cut`: the beginning of the text is missing."""
        plain, ends, removed = _remove_styles(data)
        spans = self._find_in_plain(plain, cut=cut)
        return [(_move(start, ends, removed), _move(stop - 1, ends, removed) + 1) for start, stop in spans]

    def _find_in_plain(self, data: bytes, *, cut: bool) -> list[Span]:
        spans, keyed = self._find_in_windows(data)
        keys = list(find_private_keys(data, cut=cut)) if keyed or cut else []
        if keys:
            for first, last in keys[: max(0, _MOST_SHAPES - len(self._keys))]:
                self._keys.update(list_runs(data[first : min(last, first + _OVERLAP)]))
            # Lines that quote a part of the key.
            self._innocent.clear()
            spans, _keyed = self._find_in_windows(data)
        return _merge_spans([*spans, *keys])

    def _find_in_windows(self, data: bytes) -> tuple[list[Span], bool]:
        """The places of all secrets on single lines, and whether there may be private keys."""
        spans: list[Span] = []
        keyed = False
        for start, stop in _cut_windows(data):
            part = data if stop - start == len(data) else data[start:stop]
            found, key_found = self._find_in_lines(part)
            spans += [(start + first, start + last) for first, last in found]
            keyed |= key_found
        return spans, keyed

    def _find_in_lines(self, data: bytes) -> tuple[list[Span], bool]:
        shapes = data.translate(_DIGITS).split(b"\n")
        fresh = [place for place, shape in enumerate(shapes) if shape not in self._innocent]
        if len(fresh) == len(shapes):
            places, text = [], data
        else:
            places = [0, *accumulate([len(shape) + 1 for shape in shapes])]
            text = b"\n".join([data[places[place] : places[place + 1] - 1] for place in fresh])
        spans, keyed = list(self._find_in_text(text)), mentions_private_key(text)
        starts = [0, *accumulate([len(shapes[place]) + 1 for place in fresh])]
        numbers = [bisect_right(starts, first) - 1 for first, _last in spans]
        if len(self._innocent) < _MOST_SHAPES and not keyed:
            guilty, asking = set(numbers), asks_for_key(text)
            self._innocent.update(
                shapes[place]
                for number, place in enumerate(fresh)
                if number not in guilty
                and len(shapes[place]) >= _SHORTEST_SHAPE
                and not (asking and asks_for_key(shapes[place]))
            )
        if places:
            moves = [places[fresh[number]] - starts[number] for number in numbers]
            spans = [(first + move, last + move) for (first, last), move in zip(spans, moves, strict=True)]
        return spans, keyed

    def _find_in_text(self, data: bytes) -> Iterator[Span]:
        low = data.lower()
        yield from find_assigned_secrets(data, low)
        yield from find_url_secrets(data, low)
        yield from find_command_secrets(low)
        for start, stop, encoded in find_tokens(data, self._keys):
            if not encoded or self.find(encoded):
                yield start, stop


def is_secret_value(name: str, value: str, *, typed: bool = False) -> bool:
    """Whether a value is a secret because of its name; `typed`: of an option or a variable that a user set."""
    return judge_value(name.encode("utf-8", "replace"), value.encode("utf-8", "replace"), typed=typed)


def _remove_styles(data: bytes) -> tuple[bytes, list[int], list[int]]:
    """The text without colours and with usual signs; where parts of it end, and how much was removed up to there."""
    if not data.isascii():
        data = _FOREIGN_SIGN.sub(lambda sign: _SIGNS[sign[0].decode()], data)
    if b"\x1b[" not in data and _STYLE_ANCHOR not in data:
        return data, [], []
    parts: list[bytes] = []
    ends, removed = [], []
    last = size = 0
    for style in _STYLE.finditer(data):
        parts.append(data[last : style.start()])
        size += style.start() - last
        last = style.end()
        ends.append(size)
        removed.append(last - size)
    return b"".join([*parts, data[last:]]), ends, removed


def _move(place: int, ends: list[int], removed: list[int]) -> int:
    """Where a byte of the text without colours was in the original."""
    number = bisect_right(ends, place)
    return place + (removed[number - 1] if number else 0)


def _cut_windows(data: bytes) -> Iterator[Span]:
    """Windows of whole lines; those of a line without end overlap."""
    start = 0
    while start < len(data):
        stop = min(len(data), start + _WINDOW)
        line_end = data.rfind(b"\n", start, stop) + 1 if stop < len(data) else stop
        yield start, line_end or stop
        start = line_end or stop - _OVERLAP


def _merge_spans(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif start < stop:
            merged.append((start, stop))
    return merged
