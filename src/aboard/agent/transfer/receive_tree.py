"""A target tree: lists directories, writes packs of small files, makes directories and links, deletes files.

Every directory below the root is opened without following links, one component at a time: a link in the target can't
lead out of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator

from aboard.agent import frames
from aboard.agent.transfer.file_names import OWN_PREFIX, validate_file_name
from aboard.agent.transfer.root_folder import open_folder
from aboard.agent.transfer.synced_trees import is_recorded, record_empty_tree, record_tree

TEMPORARY = ".tmp"
REPLY_BYTES = 4 * 1024 * 1024
_ROW_BYTES = 50
# A temporary file of another host's process is stale after this.
STALE_SECONDS = 3600.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (FileNotFoundError, NotADirectoryError)


class ReceiveTree:
    """One target directory and what is below it."""

    def __init__(self, root: str) -> None:
        self._root = root
        # The open directories from the root to the last one used.
        self._open: list[tuple[str, int]] = []
        self._listing: Iterator[list[object]] = iter(())
        self._temporary = "%s%s-%d%s" % (OWN_PREFIX, os.uname().nodename, os.getpid(), TEMPORARY)
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def take(self, message: frames.Message, tail: memoryview, deadline: float) -> frames.Message:
        """Handles one request; one that takes too long returns its progress."""
        if "pack" in message:
            return self._write_pack(message, tail)
        answers: dict[str, Callable[[], frames.Message]] = {
            "tree-list": lambda: self._list([str(folder) for folder in message["folders"]], deadline),
            "tree-more": lambda: self._list_more(deadline),
            "tree-sums": lambda: self._hash([str(path) for path in message["paths"]], deadline),
            "tree-make": lambda: self._make(message["folders"], message["links"]),
            "tree-delete": lambda: self._delete([str(path) for path in message["paths"]]),
            "tree-stamp": lambda: self._stamp(message["entries"]),
            "tree-synced": lambda: {"synced": is_recorded(self._open_folder(""))},
            "tree-flush": lambda: self._flush(is_equal=bool(message.get("equal"))),
        }
        return answers[message["do"]]()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop()[1])

    def _list(self, folders: list[str], deadline: float) -> frames.Message:
        """Begins to list these directories; links are not followed, and missing directories are empty."""
        self.close()
        self._listing = self._scan(folders)
        return self._list_more(deadline)

    def _list_more(self, deadline: float) -> frames.Message:
        found = []
        size = 0
        for row in self._listing:
            found.append(row)
            # JSON escapes some characters with six.
            size += _ROW_BYTES + 6 * sum(len(part) for part in row if isinstance(part, str))
            if size >= REPLY_BYTES or (len(found) % 100 == 0 and time.monotonic() > deadline):
                return {"found": found, "more": True}
        return {"found": found, "more": False}

    def _scan(self, folders: list[str]) -> Iterator[list[object]]:
        """Rows of the directory's number, name, mode, size, modification time in ns, and a link's target."""
        for number, folder in enumerate(folders):
            try:
                fd = self._open_folder(folder)
            except OSError as error:
                # Or a link where the head has a directory.
                if not isinstance(error, _GONE) and error.errno != errno.ELOOP:
                    raise
                continue
            with os.scandir(fd) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.startswith(OWN_PREFIX):
                        self._clear_stale(fd, entry.name, status)
                        continue
                    row: list[object] = [number, entry.name, status.st_mode, status.st_size, status.st_mtime_ns]
                    if stat.S_ISLNK(status.st_mode):
                        row.append(os.readlink(entry.name, dir_fd=fd))
                    yield row

    def _clear_stale(self, folder: int, name: str, status: os.stat_result) -> None:
        """Removes a temporary file whose process is gone."""
        if not name.endswith(TEMPORARY):
            return
        host, _, pid = name[len(OWN_PREFIX) : -len(TEMPORARY)].rpartition("-")
        if host == os.uname().nodename and pid.isdecimal():
            stale = not os.path.exists("/proc/%s" % pid)
        else:
            stale = time.time() - status.st_ctime > STALE_SECONDS
        if stale:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)

    def _hash(self, paths: list[str], deadline: float) -> frames.Message:
        """Hashes the first of these, as many as time permits and at least one; "" for an unreadable file."""
        sums: dict[str, str] = {}
        for path in paths:
            try:
                sums[path] = self._hash_file(path)
            except OSError:
                sums[path] = ""
            if time.monotonic() > deadline:
                break
        return {"sums": sums}

    def _hash_file(self, path: str) -> str:
        folder, name = self._locate(path)
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            digest = hashlib.sha256()
            while block := os.read(fd, 1024 * 1024):
                digest.update(block)
            return digest.hexdigest()
        finally:
            os.close(fd)

    def _make(self, folders: list[list[object]], links: list[list[object]]) -> frames.Message:
        """Makes directories, writable until they are stamped, and links; replaces files and links in the way."""
        root = open_folder(self._root, make=True)
        try:
            record_empty_tree(root)
        finally:
            os.close(root)
        for path, mode in folders:
            self._make_folder(str(path), int(mode) | stat.S_IRWXU)  # type: ignore[call-overload]
        for path, target in links:
            folder, name = self._locate(str(path))
            self._unlink_temporary(folder)
            os.symlink(str(target), self._temporary, dir_fd=folder)
            self._rename_temporary(folder, name)
        return {}

    def _make_folder(self, path: str, mode: int) -> None:
        folder, name = self._locate(path)
        try:
            os.mkdir(name, mode & 0o777, dir_fd=folder)
        except FileExistsError:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    _change_mode(folder, name, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
                return
            os.unlink(name, dir_fd=folder)
            os.mkdir(name, mode & 0o777, dir_fd=folder)

    def _write_pack(self, message: frames.Message, tail: memoryview) -> frames.Message:
        """Writes many small files; none of them if the hash of their bytes is wrong."""
        digest = hashlib.sha256(tail).hexdigest()
        if digest == message["sha256"]:
            at = 0
            for path, files in message["pack"]:
                folder = self._open_folder(str(path))
                for name, size, mode, mtime in files:
                    self._write_file(folder, validate_file_name(name), tail[at : at + size], mode & 0o777, mtime)
                    at += size
        return {"sha256": digest}

    def _write_file(self, folder: int, name: str, data: memoryview, mode: int, mtime: int) -> None:
        """Under a temporary name first: whoever reads the final name gets a whole file."""
        try:
            fd = os.open(self._temporary, _NEW_FILE, mode, dir_fd=folder)
        except FileExistsError:
            self._unlink_temporary(folder)
            fd = os.open(self._temporary, _NEW_FILE, mode, dir_fd=folder)
        try:
            try:
                while data:
                    data = data[os.write(fd, data) :]
                if mode & self._umask:
                    os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime, mtime))
            finally:
                os.close(fd)
            self._rename_temporary(folder, name)
        except OSError as error:
            self._unlink_temporary(folder)
            error.filename = self._name_path(name)
            raise

    def _rename_temporary(self, folder: int, name: str) -> None:
        try:
            os.rename(self._temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            # As rsync does: an empty directory makes way, one with files does not.
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                self._unlink_temporary(folder)
                raise IsADirectoryError(21, "a directory with files is in the way", self._name_path(name)) from None
            os.rename(self._temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _unlink_temporary(self, folder: int) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=folder)

    def _delete(self, paths: list[str]) -> frames.Message:
        """Deletes files, and directories that are empty by then; what is already gone is no error."""
        deleted = 0
        for path in paths:
            try:
                folder, name = self._locate(path)
                try:
                    os.unlink(name, dir_fd=folder)
                except IsADirectoryError:
                    self._close_below(path)
                    os.rmdir(name, dir_fd=folder)
                deleted += 1
            except _GONE:
                continue
            except OSError as error:
                # It holds protected files.
                if error.errno != errno.ENOTEMPTY:
                    raise
        return {"deleted": deleted}

    def _stamp(self, entries: list[list[object]]) -> frames.Message:
        """Sets the mode and modification time of files and directories."""
        for path, mode, mtime in entries:
            folder, name = self._locate(str(path)) if path else (self._open_folder(""), ".")
            _change_mode(folder, name, int(mode))  # type: ignore[call-overload]
            os.utime(name, ns=(int(mtime), int(mtime)), dir_fd=folder, follow_symlinks=False)  # type: ignore[call-overload]
        return {}

    def _flush(self, *, is_equal: bool) -> frames.Message:
        """Writes the disk's cache once, for all files of the tree; one that has nothing of its own left is recorded."""
        import ctypes  # noqa: PLC0415 - needed once, and Python has no syncfs

        fd = self._open_folder("")
        with contextlib.suppress(AttributeError):
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), self._root)
        if is_equal:
            record_tree(fd)
        self.close()
        return {}

    def _locate(self, path: str) -> tuple[int, str]:
        """The open parent directory of a path, and its last component."""
        parent, _, name = path.rpartition("/")
        return self._open_folder(parent), validate_file_name(name)

    def _open_folder(self, path: str) -> int:
        """Opens a directory below the root; directories on the way to it stay open for the next one."""
        wanted = ["", *path.split("/")] if path else [""]
        common = 0
        for (name, _fd), other in zip(self._open, wanted):
            if name != other:
                break
            common += 1
        while len(self._open) > common:
            os.close(self._open.pop()[1])
        for name in wanted[common:]:
            if not self._open:
                fd = open_folder(self._root)
            else:
                try:
                    fd = os.open(validate_file_name(name), _DIRECTORY, dir_fd=self._open[-1][1])
                except OSError as error:
                    error.filename = self._name_path(name)
                    raise
            self._open.append((name, fd))
        return self._open[-1][1]

    def _close_below(self, path: str) -> None:
        """Closes a directory that is about to be removed."""
        depth = path.count("/") + 1
        while len(self._open) > depth:
            os.close(self._open.pop()[1])

    def _name_path(self, name: str) -> str:
        return "/".join([*(part for part, _fd in self._open[1:]), name])


def _change_mode(folder: int, name: str, mode: int) -> None:
    """Changes the permissions without following a link, and without the permission to open the file."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        before = os.fstat(fd).st_mode
        if not stat.S_ISLNK(before) and before & 0o777 != mode & 0o777:
            os.chmod("/proc/self/fd/%d" % fd, stat.S_IMODE(before) & 0o7000 | mode & 0o777)
    finally:
        os.close(fd)
