"""Reads files of JSON lines that may be torn, foreign or hostile: what can't be read is counted."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeGuard, TypeVar

from aboard.core.decoding import DecodeError, decode_with, parse_json
from aboard.diagnoses.untrusted import escape_text

T = TypeVar("T")
# Above any line that is written.
_LINE_BYTES = 1 << 20
# Exact in every program that reads JSON.
_MOST = 2**53
_NAME_CHARS, _MOST_FIGURES = 64, 64


class RecordLines(Generic[T]):
    """The values of a file, in order. Once they are read, `dropped` has how many are missing or unreadable."""

    def __init__(
        self,
        path: Path,
        parse: Callable[[dict[str, Any]], T | None],
        *,
        shorten: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`parse` returns None for a line that it doesn't know, or raises what wrong types raise.

        `shorten` removes what `parse` doesn't need, since decoding JSON is most of the work.
        """
        self.dropped = 0
        self._path = path
        self._parse = parse
        self._shorten = shorten

    def __iter__(self) -> Iterator[T]:
        self.dropped = 0
        decode = choose_decoder()

        def parse(line: bytes) -> T | None:
            entry = decode(self._shorten(line) if self._shorten else line)
            if "dropped" in entry:
                self.dropped += as_count(entry["dropped"])
                return None
            return self._parse(entry)

        for line in self._read_lines():
            try:
                value = decode_with(parse, line)
            except DecodeError:
                self.dropped += 1
            else:
                if value is not None:
                    yield value

    def _read_lines(self) -> Iterator[bytes]:
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            while line := file.readline(_LINE_BYTES):
                yield line
                while line and not line.endswith(b"\n"):
                    # A torn line, or one too long to be ours: its start isn't valid JSON, and its rest is skipped.
                    line = file.readline(_LINE_BYTES)


def choose_decoder() -> Callable[[bytes], Any]:
    """Decodes JSON as `json.loads` does, in a third of its time: a week of 64 nodes has 360,000 lines."""
    from pydantic_core import from_json  # noqa: PLC0415 - most commands read no figures

    def decode(line: bytes) -> Any:
        try:
            return from_json(line)
        except ValueError:
            # It refuses lone surrogates, which the names of files may have.
            return parse_json(line)

    return decode


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return type(value) in (int, float) and -_MOST < value < _MOST  # type: ignore[operator]  # it is a number


def as_number(value: object) -> float:
    """A finite number, or ValueError."""
    if is_number(value):
        return value
    raise ValueError("expected a number")


def as_count(value: object) -> int:
    """A whole number from 0, or ValueError."""
    if type(value) is int and 0 <= value < _MOST:
        return value
    raise ValueError("expected a count")


def as_text(value: object) -> str:
    """A short text, made visible; or ValueError."""
    if isinstance(value, str):
        return escape_text(value[:_NAME_CHARS], _NAME_CHARS)
    raise ValueError("expected text")


def select_figures(raw: object) -> dict[str, float | None]:
    """The entries that are finite numbers, or None for a figure that has no value."""
    if not isinstance(raw, dict):
        return {}
    return {
        name if name.isprintable() else escape_text(name, _NAME_CHARS): value
        for name, value in islice(raw.items(), _MOST_FIGURES)
        if len(name) <= _NAME_CHARS and (value is None or is_number(value))
    }
