"""A journal of JSON lines, each on disk when it is written. A full disk loses lines, which are counted."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aboard.core.decoding import DecodeError, decode_with, parse_json
from aboard.diagnoses.untrusted import encode_text
from aboard.record.run_directory import PRIVATE_FILE

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=encode_text).encode


class Journal:
    """One writer's file. A line that didn't fit is overwritten by the next one that does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._unreported = 0
        self.size = 0
        self.dropped = 0

    def append(self, entry: Mapping[str, Any]) -> bool:
        """Appends a line; returns whether it was written. The first line after a loss has the number of lost lines."""
        line = _encode_line(entry)
        lost = _encode_line({"dropped": self._unreported}) if self._unreported else b""
        try:
            self._write(lost + line)
        except OSError:
            self._unreported += 1
            self.dropped += 1
            return False
        self._unreported = 0
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            self.size = _find_last_newline(self._fd)
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self.size + done)
        except OSError:
            # Removes a partial line, which a reader would take for the start of the next one.
            with suppress(OSError):
                os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)


def read_entries(path: Path, decode: Callable[[bytes], Any] = parse_json) -> Iterator[dict[str, Any]]:
    """The entries in order; skips a torn last line, and counts any other unreadable line as dropped."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                entry = decode_with(decode, line)
            except DecodeError:
                entry = None
            yield entry if isinstance(entry, dict) else {"dropped": 1}


def _encode_line(entry: Mapping[str, Any]) -> bytes:
    # A lone surrogate, as in a file name that isn't UTF-8, must not crash the run.
    return (_ENCODE(entry) + "\n").encode("utf-8", "backslashreplace")


def _find_last_newline(fd: int) -> int:
    """The end of the last complete line: an earlier writer may have been killed while writing."""
    size = os.fstat(fd).st_size
    while size:
        start = max(0, size - 65536)
        end = os.pread(fd, size - start, start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0
