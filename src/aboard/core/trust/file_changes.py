"""Lines that we add to a file, and what the file must contain once they are taken out again."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from aboard.core.decoding import CustomDecoder, DecodeError, MaxLength
from aboard.lazy_dataclass import dataclass

RecordedText = Annotated[str, MaxLength(2**14)]
_BASE64 = re.compile(r"[A-Za-z0-9+/]{0,16777216}={0,2}")


def _decode_content(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str) and _BASE64.fullmatch(value):
        return base64.b64decode(value)
    raise DecodeError("expected the content of a file in base64")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Lines that were added to a file; `before` is None if there was no file, `after` is the SHA-256 of the result."""

    path: RecordedText
    before: Annotated[bytes | None, CustomDecoder(_decode_content)]
    after: RecordedText
    lines: Annotated[tuple[RecordedText, ...], MaxLength(2**17)]


def list_missing_lines(lines: Iterable[str], content: bytes) -> list[str]:
    """The lines that the content doesn't have."""
    present = set(content.splitlines())
    return [line for line in lines if line.encode() not in present]


def append_lines(content: bytes | None, lines: Sequence[str]) -> bytes:
    """The content with these lines at its end; a last line without a newline gets one."""
    start = content or b""
    if start and not start.endswith(b"\n"):
        start += b"\n"
    return start + "".join(f"{line}\n" for line in lines).encode()


def plan_change(path: str, content: bytes | None, lines: Sequence[str]) -> tuple[FileChange, bytes]:
    """The change that adds these lines, and the new content."""
    after = append_lines(content, lines)
    return FileChange(path=path, before=content, after=_hash_content(after), lines=tuple(lines)), after


def unwind_changes(content: bytes | None, changes: Sequence[FileChange]) -> tuple[bytes | None, tuple[FileChange, ...]]:
    """Takes back the newest changes while the file is exactly as they left it; returns the changes that remain."""
    kept = list(changes)
    while kept and content is not None and _hash_content(content) == kept[-1].after:
        content = kept.pop().before
    return content, tuple(kept)


def undo_changes(content: bytes | None, changes: Iterable[FileChange]) -> bytes | None:
    """The content without these changes, the newest undone first; None if there should be no file.

    A file that is as we left it becomes exactly what it was before. From one that was edited since, only our lines go.
    """
    for change in reversed(list(changes)):
        if content is None or content == change.before:
            continue
        if _hash_content(content) == change.after:
            content = change.before
        else:
            content = _remove_lines(content, change.lines)
            if not content and change.before is None:
                content = None
    return content


def _remove_lines(content: bytes, lines: Iterable[str]) -> bytes:
    """Removes the last occurrence of each line."""
    kept = content.splitlines(keepends=True)
    for line in lines:
        for index in range(len(kept) - 1, -1, -1):
            if kept[index].rstrip(b"\r\n") == line.encode():
                del kept[index]
                break
    return b"".join(kept)


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
