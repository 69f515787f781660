"""A .json file: a list of objects, or an object that holds such a list, read element by element in bounded memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from aboard.core.size import size
from aboard.data.intake.chunks import Chunk
from aboard.data.intake.lines import Record, halved, json_type
from aboard.data.intake.opened import MAX_ROW, STREAM_ERRORS, opened
from aboard.data.rows import Broken, Where
from aboard.diagnoses.untrusted import Untrusted

_BLOCK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
# Lists under these keys are a row's own content; under any other key they are the rows.
_CONTENT = frozenset({"messages", "conversations", "conversation", "prompt", "completion", "tools", "input_ids"})
_CONTENT |= {"labels", "attention_mask", "loss_mask", "chosen", "rejected"}
# JSONDecodeError points at most this far before the end of a text that was cut off, but for an open string.
_NEAR_END = 32


def is_lines(path: str) -> bool:
    """Whether a .json file is JSON lines under another name: its first line is an object, and another follows."""
    try:
        with opened(path) as file:
            first = _next_line(file).removeprefix(codecs.BOM_UTF8)
            if not first.startswith(b"{") or not isinstance(json.loads(first), dict):
                return False
            return _next_line(file).startswith(b"{")
    except (*STREAM_ERRORS, ValueError, RecursionError):
        return False


def json_items(chunk: Chunk) -> Iterator[Record | Broken]:
    """The elements of the file's list; what follows an error of syntax is not read, for nobody knows where it is."""
    row = 0
    try:
        with opened(chunk.path) as file:
            for row, item in enumerate(_items(_Window(file)), start=1):
                yield _judged(item, Where(file=chunk.file, line=row, unit="row"))
    except _Trouble as trouble:
        where = Where(file=chunk.file, line=row + 1, unit="row")
        yield Broken(where=where, code=trouble.code, why=Untrusted(f"{trouble.why}; what follows it is not read"))
    except STREAM_ERRORS as error:
        where = Where(file=chunk.file, line=row + 1, unit="row")
        yield Broken(where=where, code="file-cut", why=Untrusted(f"the file can't be read further: {error}"))


class _Trouble(Exception):
    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class _Window:
    """A sliding piece of the file's text."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        # A byte that is no UTF-8 becomes half a character: it spoils its own row, and the next is found all the same.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._at = 0
        self._line = 1
        self._column = 0  # of the text's first character, counted from 0
        self._ended = False
        self._json = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is no space, or nothing at the end."""
        while True:
            self._at = _space_end(self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> str:
        """Passes over one character, which must be one of the wanted."""
        found = self.peek()
        if not found or found not in wanted:
            seen = f"'{found}'" if found else "the end of the file"
            expected = f"one of {' '.join(wanted)}" if wanted else "the end of the file"
            raise self._wrong(f"{seen}, where {expected} was expected", self._at)
        self._at += 1
        return found

    def value(self) -> Any:
        """The next whole value."""
        self.peek()
        while True:
            trouble: _Trouble | None = None
            try:
                found, end = self._json.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # a number at the very end may go on
                    self._at = end
                    return found
            except json.JSONDecodeError as error:
                trouble = self._wrong(error.msg.removesuffix(" at"), error.pos)
                near = error.pos >= len(self._text) - _NEAR_END or error.msg.startswith("Unterminated string")
                if not near:
                    raise trouble from None
            except RecursionError:
                raise _Trouble("row-json", "JSON that is nested too deeply to be a row") from None
            except ValueError as error:  # a number of more than 4300 digits
                raise self._wrong(str(error), self._at) from None
            if len(self._text) - self._at > MAX_ROW:
                raise _Trouble("row-long", f"a row of more than {size(MAX_ROW)}")
            # Twice as much each time, or a long row would be parsed anew for every block.
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

    def _wrong(self, why: str, at: int) -> _Trouble:
        passed = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) if passed else self._column + at + 1
        return _Trouble("row-json", f"no JSON at line {self._line + passed} column {column} of the file: {why}")


def _items(window: _Window) -> Iterator[Any]:
    first = window.peek()
    if first == "[":
        yield from _elements(window)
    elif first == "{":
        yield from _of_object(window)
    elif first:
        yield window.value()
    if window.peek():
        window.take("")


def _elements(window: _Window) -> Iterator[Any]:
    window.take("[")
    if window.peek() == "]":
        window.take("]")
        return
    while True:
        yield window.value()
        if window.take(",]") == "]":
            return


def _of_object(window: _Window) -> Iterator[Any]:
    """The elements of the first list under a key that is no row's own; an object without one is itself a row."""
    fields: dict[str, Any] = {}
    found = False
    window.take("{")
    while window.peek() != "}":
        key = window.value()
        window.take(":")
        if window.peek() == "[" and key not in _CONTENT:
            found = True
            yield from _elements(window)
        elif isinstance(key, str):
            fields[key] = window.value()
        else:
            window.take("")
        if window.peek() != "}":
            window.take(",")
    window.take("}")
    if not found:
        yield fields


def _judged(item: object, where: Where) -> Record | Broken:
    if halved(item):
        return Broken(where=where, code="row-utf8", why=Untrusted("bytes that are no UTF-8, or half a character"))
    if not isinstance(item, dict):
        why = f"{json_type(item)}, where an object with columns was expected"
        return Broken(where=where, code="row-type", why=Untrusted(why))
    return where, item


def _space_end(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _next_line(file: BinaryIO) -> bytes:
    while line := file.readline(MAX_ROW):
        if line.strip():
            return line.strip()
    return b""
