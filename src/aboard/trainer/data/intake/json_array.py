"""A .json file: a list of objects, or an object that contains one, read element by element in bounded memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.chunks import Chunk, make_cut_off_row
from aboard.trainer.data.intake.compressed_files import MAX_ROW, STREAM_ERRORS, open_decompressed
from aboard.trainer.data.intake.jsonl_and_text import Record, describe_json_type, has_lone_surrogate
from aboard.trainer.data.rows import InvalidRow, RowLocation

_BLOCK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
# Lists under these keys belong to a row; under any other key they are the rows.
_ROW_KEYS = frozenset({"messages", "conversations", "conversation", "prompt", "completion", "tools", "input_ids"})
_ROW_KEYS |= {"labels", "attention_mask", "loss_mask", "chosen", "rejected"}
# In a truncated text, JSONDecodeError points at most this far before the end, except for an open string.
_NEAR_END = 32


def is_json_lines(path: str) -> bool:
    """Whether a .json file contains JSON lines: its first line is an object, and another one follows."""
    try:
        with open_decompressed(path) as file:
            first = _read_nonblank_line(file).removeprefix(codecs.BOM_UTF8)
            if not first.startswith(b"{") or not isinstance(json.loads(first), dict):
                return False
            return _read_nonblank_line(file).startswith(b"{")
    except (*STREAM_ERRORS, ValueError, RecursionError):
        return False


def read_json_array(chunk: Chunk) -> Iterator[Record | InvalidRow]:
    """The elements of the file's list; after a syntax error the rest is not read, since its position is unknown."""
    row = 0
    try:
        with open_decompressed(chunk.path) as file:
            for row, item in enumerate(_read_items(_JsonWindow(file)), start=1):
                yield _check_item(item, RowLocation(file=chunk.file, line=row, unit="row"))
    except _JsonError as trouble:
        where = RowLocation(file=chunk.file, line=row + 1, unit="row")
        yield InvalidRow(
            location=where, code=trouble.code, why=Untrusted(f"{trouble}; the rest of the file is not read")
        )
    except STREAM_ERRORS as error:
        yield make_cut_off_row(RowLocation(file=chunk.file, line=row + 1, unit="row"), error)


class _JsonError(Exception):
    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class _JsonWindow:
    """A sliding window over the file's text."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        # A byte that is not UTF-8 becomes a lone surrogate: it invalidates its own row, and the next one is still
        # found.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._at = 0
        self._line = 1
        self._column = 0  # of the text's first character, counted from 0
        self._ended = False
        self._json = json.JSONDecoder()

    def peek(self) -> str:
        """The next non-space character, or an empty string at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> str:
        """Consumes one character, which must be one of those wanted."""
        found = self.peek()
        if not found or found not in wanted:
            seen = f"'{found}'" if found else "the end of the file"
            expected = f"one of {' '.join(wanted)}" if wanted else "the end of the file"
            raise self._wrong(f"{seen}, where {expected} was expected", self._at)
        self._at += 1
        return found

    def value(self) -> Any:
        """Parses the next complete value."""
        self.peek()
        while True:
            trouble: _JsonError | None = None
            try:
                found, end = self._json.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # a number at the very end may continue
                    self._at = end
                    return found
            except json.JSONDecodeError as error:
                trouble = self._wrong(error.msg.removesuffix(" at"), error.pos)
                near = error.pos >= len(self._text) - _NEAR_END or error.msg.startswith("Unterminated string")
                if not near:
                    raise trouble from None
            except RecursionError:
                raise _JsonError("row-json", "JSON that is nested too deeply to be a row") from None
            except ValueError as error:  # a number of more than 4300 digits
                raise self._wrong(str(error), self._at) from None
            if len(self._text) - self._at > MAX_ROW:
                raise _JsonError("row-long", f"a row of more than {format_size(MAX_ROW)}")
            # Doubled each time, or a long row would be parsed again for every block.
            if not self._more(len(self._text) - self._at) and trouble is not None:
                raise trouble

    def _more(self, least: int = 0) -> bool:
        if self._ended:
            return False
        block = self._file.read(max(_BLOCK, least))
        self._ended = not block
        passed = self._text.count("\n", 0, self._at)
        self._line += passed
        self._column = self._at + (-self._text.rfind("\n", 0, self._at) - 1 if passed else self._column)
        self._text = self._text[self._at :] + self._decoder.decode(block, final=self._ended)
        self._at = 0
        return True

    def _wrong(self, why: str, at: int) -> _JsonError:
        passed = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) if passed else self._column + at + 1
        return _JsonError("row-json", f"invalid JSON at line {self._line + passed} column {column} of the file: {why}")


def _read_items(window: _JsonWindow) -> Iterator[Any]:
    first = window.peek()
    if first == "[":
        yield from _read_elements(window)
    elif first == "{":
        yield from _read_object_rows(window)
    elif first:
        yield window.value()
    if window.peek():
        window.take("")


def _read_elements(window: _JsonWindow) -> Iterator[Any]:
    window.take("[")
    if window.peek() == "]":
        window.take("]")
        return
    while True:
        yield window.value()
        if window.take(",]") == "]":
            return


def _read_object_rows(window: _JsonWindow) -> Iterator[Any]:
    """The elements of the first list under a key that isn't a row's own; an object without one is a row itself."""
    fields: dict[str, Any] = {}
    has_list = False
    window.take("{")
    while window.peek() != "}":
        key = window.value()
        window.take(":")
        if window.peek() == "[" and key not in _ROW_KEYS:
            has_list = True
            yield from _read_elements(window)
        elif isinstance(key, str):
            fields[key] = window.value()
        else:
            window.take("")
        if window.peek() != "}":
            window.take(",")
    window.take("}")
    if not has_list:
        yield fields


def _check_item(item: object, location: RowLocation) -> Record | InvalidRow:
    if has_lone_surrogate(item):
        return InvalidRow(
            location=location, code="row-utf8", why=Untrusted("bytes that are not UTF-8, or a lone surrogate")
        )
    if not isinstance(item, dict):
        why = f"{describe_json_type(item)}, where an object with columns was expected"
        return InvalidRow(location=location, code="row-type", why=Untrusted(why))
    return location, item


def _read_nonblank_line(file: BinaryIO) -> bytes:
    while line := file.readline(MAX_ROW):
        if line.strip():
            return line.strip()
    return b""
