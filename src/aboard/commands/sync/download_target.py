"""A directory on this machine that receives files from nodes: nothing outside of it is ever written."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
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
    """Opened once; everything in it is reached from its descriptor, and no link in it is followed.

    Neither is one on the way to it from the working directory, which may be somebody else's: that is a relative path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        start: Path | str = "."
        if self.path.is_absolute():
            self.path.mkdir(parents=True, exist_ok=True)
            start = self.path
        self._fd = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not self.path.is_absolute():
            outer = self._fd
            try:
                self._fd = self._open_folder(f"{self.path}/.", make=True)
            except NotADirectoryError:
                raise OSError(errno.ELOOP, "a link or a file is in the place of a directory") from None
            finally:
                os.close(outer)
        return self

    def __exit__(self, *_error: object) -> None:
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
            fd = os.open(_get_base(file.name), _FILE, dir_fd=folder)
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
        self._replace(name, lambda draft, folder: os.symlink(to, draft, dir_fd=folder))

    def write_file(self, name: str, content: bytes) -> None:
        """Creates or replaces a small file of our own; a link in its place is replaced, too."""

        def write(draft: str, folder: int) -> None:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder), "wb") as file:
                file.write(content)

        self._replace(name, write)

    def _replace(self, name: str, make: Callable[[str, int], None]) -> None:
        folder = self._open_folder(name, make=True)
        draft = f".aboard-{token_hex(8)}"
        try:
            make(draft, folder)
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
            self._part = _open_part(folder, file)
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


def _open_part(folder: int, file: WantedFile) -> PartialFile:
    name = _get_base(file.name)
    try:
        return PartialFile(folder, name, file.bytes, file.sha256)
    except BlockingIOError:
        # Equal files of a directory are under way at once: this one's part is also named after its name.
        own = hashlib.sha256(f"{file.sha256} {name}".encode("utf-8", "surrogateescape")).hexdigest()
        return PartialFile(folder, name, file.bytes, file.sha256, part=own)


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
