"""JSON lines and plain text: one row a line, each by itself, so that a bad line costs a line."""

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from aboard.core.size import size
from aboard.data.intake.chunks import Chunk
from aboard.data.intake.opened import MAX_ROW, STREAM_ERRORS, opened
from aboard.data.rows import Broken, Where
from aboard.diagnoses.untrusted import Untrusted

Record = tuple[Where, dict[str, Any]]

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SKIP = 1 << 20


def json_lines(chunk: Chunk) -> Iterator[Record | Broken]:
    """The objects of the chunk's lines; blank lines are none."""
    return _records(chunk, parse)


def text_lines(chunk: Chunk) -> Iterator[Record | Broken]:
    """Each line that isn't blank as a document in the column `text`, as `datasets` reads text files."""
    return _records(chunk, _document)


def _records(chunk: Chunk, record: Callable[[bytes, Where], Record | Broken]) -> Iterator[Record | Broken]:
    number = chunk.first
    try:
        with opened(chunk.path) as file:
            if chunk.start:
                file.seek(chunk.start)
            for number, line in _lines(file, chunk):
                where = Where(file=chunk.file, line=number)
                if isinstance(line, str):
                    yield Broken(where=where, code="row-long", why=Untrusted(line))
                elif line.startswith(_UTF16):
                    why = "the file is UTF-16, not UTF-8; convert it with: iconv -f UTF-16 -t UTF-8"
                    yield Broken(where=where, code="row-utf8", why=Untrusted(why))
                    return
                elif line.strip():
                    yield record(line, where)
    except STREAM_ERRORS as error:
        where = Where(file=chunk.file, line=number + 1 if number > chunk.first else number)
        yield Broken(where=where, code="file-cut", why=Untrusted(f"the file can't be read further: {error}"))


def parse(line: bytes, where: Where) -> Record | Broken:
    """One line's object, or why it is none."""
    try:
        found = json.loads(line.rstrip(b"\r\n").decode())
    except UnicodeDecodeError as error:
        code, why = "row-utf8", _no_utf8(error, line)
    except json.JSONDecodeError as error:
        # Some of json's messages end in "at" themselves.
        code, why = "row-json", f"no JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        code, why = "row-json", "JSON that is nested too deeply to be a row"
    except ValueError as error:  # a number of more than 4300 digits
        code, why = "row-json", f"no JSON: {error}"
    else:
        # Half a character can only come from an escape such as \ud83d that stands alone, and no tokenizer takes it.
        if (b"\\ud" in line or b"\\uD" in line) and halved(found):
            code, why = "row-utf8", "half a character: a \\ud8xx escape without its other half"
        elif isinstance(found, dict):
            return where, found
        else:
            code, why = "row-type", f"{json_type(found)}, where an object with columns was expected"
    return Broken(where=where, code=code, why=Untrusted(why))


def _document(line: bytes, where: Where) -> Record | Broken:
    try:
        return where, {"text": line.rstrip(b"\r\n").decode()}
    except UnicodeDecodeError as error:
        return Broken(where=where, code="row-utf8", why=Untrusted(_no_utf8(error, line)))


def _no_utf8(error: UnicodeDecodeError, line: bytes) -> str:
    return f"byte {error.start + 1} of the line is no UTF-8 (0x{line[error.start]:02x})"


def halved(found: object) -> bool:
    """Whether a surrogate stands alone in it."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def json_type(value: object) -> str:
    """The kind of a value, in JSON's words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def _lines(file: BinaryIO, chunk: Chunk) -> Iterator[tuple[int, bytes | str]]:
    """Numbered lines; one that is too long is told in words, and passed over in bounded memory."""
    number, at = chunk.first, chunk.start
    while (not chunk.stop or at < chunk.stop) and (line := file.readline(MAX_ROW + 1)):
        at += len(line)
        if len(line) > MAX_ROW and not line.endswith(b"\n"):
            while (more := file.readline(_SKIP)) and not more.endswith(b"\n"):
                at += len(more)
            at += len(more)
            yield number, f"a line of more than {size(MAX_ROW)}, which is not read"
        else:
            yield number, line.removeprefix(_BOM) if at == len(line) else line
        number += 1
