"""A file of the head's that is being sent: read in pieces, and judged when it doesn't arrive as it should."""

import os
from types import TracebackType
from typing import Self

from aboard.data.store.durable import sha256_of
from aboard.data.store.fingerprints import changed, stamp_of
from aboard.data.store.manifest import NAME, FileEntry
from aboard.data.store.parcels import Parcel
from aboard.data.store.sound import damaged
from aboard.diagnoses import AboardError


class SentFile:
    """Opened once for all of its pieces, by `with`."""

    def __init__(self, parcel: Parcel, file: FileEntry) -> None:
        self._path = parcel.folder / file.name
        self._file = file
        self._made_by_us = any(each.name == NAME for each in parcel.files)

    def __enter__(self) -> Self:
        self._stamp = stamp_of(self._path)
        if self._stamp[0] != self._file.bytes:
            raise self._other(f"it has {self._stamp[0]} bytes, and should have {self._file.bytes}")
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def read(self, at: int, size: int) -> bytes:
        """Just so many bytes; may block, so it is called in a thread."""
        data = os.pread(self._fd, size, at)
        if len(data) != size:
            raise changed(self._path)
        return data

    def judge(self) -> None:
        """Raises what is wrong with the file here; nothing when it is right, and the node is to blame."""
        if stamp_of(self._path) != self._stamp:
            raise changed(self._path)
        found = sha256_of(self._path)
        if found != self._file.sha256:
            raise self._other(f"its sha256 is {found}, and should be {self._file.sha256}")

    def _other(self, why: str) -> AboardError:
        """A set of ours can be made again; what a user brought can't, but it may have been changed on purpose."""
        return damaged(self._path, why) if self._made_by_us else changed(self._path)
