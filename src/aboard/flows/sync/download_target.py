"""A directory on this machine that receives files from nodes: nothing outside of it is ever written."""

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from aboard.agent.transfer.partial_file import BLOCK, PartialFile
from aboard.lazy_dataclass import dataclass

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class WantedFile:
    """A file to fetch: its validated relative name and its content; without a time, the file's is that of arrival."""

    name: str
    bytes: int
    sha256: str
    mode: int = 0o600
    modified_us: int | None = None


class DownloadTarget:
    """Opened once; everything in it is reached from its descriptor, and no link in it is followed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def count_free_bytes(self) -> int:
        disk = os.fstatvfs(self._fd)
        return disk.f_bavail * disk.f_frsize

    def has(self, file: WantedFile) -> bool:
        """Whether the file is already here, by size and hash."""
        try:
            folder = self._open_folder(file.name, make=False)
        except OSError:
            return False
        try:
            fd = os.open(
                _get_base(file.name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
        except OSError:
            return False
        finally:
            os.close(folder)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
                return False
            digest = hashlib.sha256()
            while block := os.read(fd, BLOCK):
                digest.update(block)
            return digest.hexdigest() == file.sha256
        finally:
            os.close(fd)

    def make_folder(self, name: str) -> None:
        os.close(self._open_folder(f"{name}/.", make=True))

    def make_link(self, name: str, to: str) -> None:
        """Creates or replaces a link atomically; a directory in its place is an error."""
        folder = self._open_folder(name, make=True)
        draft = f".aboard-{token_hex(8)}"
        try:
            os.symlink(to, draft, dir_fd=folder)
            try:
                os.rename(draft, _get_base(name), src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(draft, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    def receive(self, file: WantedFile) -> "IncomingFile":
        return IncomingFile(self._open_folder(file.name, make=True), file)

    def _open_folder(self, name: str, *, make: bool) -> int:
        """The directory of a name, whose parts must be directories and no links."""
        folder = os.dup(self._fd)
        try:
            for part in name.split("/")[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
        except BaseException:
            os.close(folder)
            raise
        return folder


class IncomingFile:
    """One file under way: private and under a temporary name until it is complete and has the right hash."""

    def __init__(self, folder: int, file: WantedFile) -> None:
        self.file = file
        self.open = True
        self._folder = folder
        try:
            self._part = PartialFile(folder, _get_base(file.name), file.bytes, file.sha256, 0o600)
        except BaseException:
            os.close(folder)
            raise
        self._part.catch_up(float("inf"))
        self.start = self._part.at

    def write(self, at: int, data: memoryview) -> None:
        self._part.write(at, data)

    def publish(self) -> str:
        """Returns its hash; if it is right, the file has its final name, mode and time."""
        try:
            digest = self._part.publish()
            if digest == self.file.sha256:
                self._set_attributes()
            return digest
        finally:
            self.close()

    def close(self) -> None:
        """Keeps what is here for the next attempt."""
        if self.open:
            self.open = False
            self._part.close()
            os.close(self._folder)

    def _set_attributes(self) -> None:
        fd = os.open(_get_base(self.file.name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            os.fchmod(fd, self.file.mode & 0o777)
            if self.file.modified_us is not None:
                os.utime(fd, ns=(self.file.modified_us * 1000, self.file.modified_us * 1000))
        finally:
            os.close(fd)


def is_link_inside(name: str, to: str) -> bool:
    """Whether a link stays in the directory, whatever other links are there that do so.

    `..` may only lead: behind the name of another link it would start wherever that one points.
    """
    parts = to.split("/")
    climbs = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    inside = ".." not in parts[climbs:] and climbs <= name.count("/")
    return bool(to) and not to.startswith("/") and "\0" not in to and inside


def _get_base(name: str) -> str:
    return name.rpartition("/")[2]
