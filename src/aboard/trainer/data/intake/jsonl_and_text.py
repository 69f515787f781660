"""JSON lines and plain text: one row per line, so that a bad line costs one row."""

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.chunks import Chunk, make_cut_off_row
from aboard.trainer.data.intake.compressed_files import MAX_ROW, STREAM_ERRORS, open_decompressed
from aboard.trainer.data.rows import InvalidRow, RowLocation

Record = tuple[RowLocation, dict[str, Any]]

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SKIP_BLOCK = 1 << 20


def read_json_lines(chunk: Chunk) -> Iterator[Record | InvalidRow]:
    """The objects of the chunk's lines, without blank lines."""
    return _read_records(chunk, parse_json_line)


def read_text_lines(chunk: Chunk) -> Iterator[Record | InvalidRow]:
    """Each non-blank line as a document in the column `text`, as `datasets` reads text files."""
    return _read_records(chunk, _parse_text_line)


def _read_records(
    chunk: Chunk, parse_line: Callable[[bytes, RowLocation], Record | InvalidRow]
) -> Iterator[Record | InvalidRow]:
    number = chunk.first
    try:
        with open_decompressed(chunk.path) as file:
            if chunk.start:
                file.seek(chunk.start)
            for number, line in _read_numbered_lines(file, chunk):
                where = RowLocation(file=chunk.file, line=number)
                if isinstance(line, str):
                    yield InvalidRow(location=where, code="row-long", why=Untrusted(line))
                elif line.startswith(_UTF16):
                    why = "the file is UTF-16, not UTF-8; convert it with: iconv -f UTF-16 -t UTF-8"
                    yield InvalidRow(location=where, code="row-utf8", why=Untrusted(why))
                    return
                elif line.strip():
                    yield parse_line(line, where)
    except STREAM_ERRORS as error:
        where = RowLocation(file=chunk.file, line=number + 1 if number > chunk.first else number)
        yield make_cut_off_row(where, error)


def parse_json_line(line: bytes, location: RowLocation) -> Record | InvalidRow:
    """The object of one line, or why it is invalid."""
    try:
        value = json.loads(line.rstrip(b"\r\n").decode())
    except UnicodeDecodeError as error:
        code, why = "row-utf8", _format_utf8_error(error, line)
    except json.JSONDecodeError as error:
        # Some of json's messages end in "at" themselves.
        code, why = "row-json", f"invalid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        code, why = "row-json", "JSON that is nested too deeply to be a row"
    except ValueError as error:  # a number of more than 4300 digits
        code, why = "row-json", f"invalid JSON: {error}"
    else:
        # Only a lone escape such as \ud83d gives a lone surrogate, and no tokenizer accepts it.
        if (b"\\ud" in line or b"\\uD" in line) and has_lone_surrogate(value):
            code, why = "row-utf8", "a lone surrogate: a \\ud8xx escape without its second half"
        elif isinstance(value, dict):
            return location, value
        else:
            code, why = "row-type", f"{describe_json_type(value)}, where an object with columns was expected"
    return InvalidRow(location=location, code=code, why=Untrusted(why))


def _parse_text_line(line: bytes, location: RowLocation) -> Record | InvalidRow:
    try:
        return location, {"text": line.rstrip(b"\r\n").decode()}
    except UnicodeDecodeError as error:
        return InvalidRow(location=location, code="row-utf8", why=Untrusted(_format_utf8_error(error, line)))


def _format_utf8_error(error: UnicodeDecodeError, line: bytes) -> str:
    return f"byte {error.start + 1} of the line is not UTF-8 (0x{line[error.start]:02x})"


def has_lone_surrogate(value: object) -> bool:
    """Whether the text contains a lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def describe_json_type(value: object) -> str:
    """The type of a value in JSON's terms."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def _read_numbered_lines(file: BinaryIO, chunk: Chunk) -> Iterator[tuple[int, bytes | str]]:
    """Numbered lines; a line that is too long is skipped in bounded memory, with a description in its place."""
    number, at = chunk.first, chunk.start
    while (not chunk.stop or at < chunk.stop) and (line := file.readline(MAX_ROW + 1)):
        at += len(line)
        if len(line) > MAX_ROW and not line.endswith(b"\n"):
            while (more := file.readline(_SKIP_BLOCK)) and not more.endswith(b"\n"):
                at += len(more)
            at += len(more)
            yield number, f"a line of more than {format_size(MAX_ROW)}, which is not read"
        else:
            yield number, line.removeprefix(_BOM) if at == len(line) else line
        number += 1
