"""Requests to a file receiver: list a directory, hash its files, write files there."""

from __future__ import annotations

import contextlib
import os
import time

from aboard.agent import frames
from aboard.agent.transfer.file_names import OWN_PREFIX, BadName, read_file_size, validate_file_name
from aboard.agent.transfer.hash_cache import HashCache
from aboard.agent.transfer.partial_file import PART, PartialFile, part_name, piece_part_name
from aboard.agent.transfer.receive_tree import ReceiveTree
from aboard.agent.transfer.root_folder import TREE_SEPARATOR, open_folder, open_nearest_folder
from aboard.agent.transfer.synced_trees import record_empty_tree

MARK = ".aboard-mark-"
MOST_EXTRA = 20
# A mark is needed for seconds.
OLD_SECONDS = 3600.0


class ReceiveFolders:
    """The requested directories. Nothing outside of them is ever written."""

    def __init__(self) -> None:
        self._folders: dict[str, _ReceiveFolder] = {}
        self._trees: dict[str, ReceiveTree] = {}
        self._receiving: tuple[_ReceiveFolder, PartialFile] | None = None
        # The directory of the last request.
        self.path = ""
        self.closed = False

    def take(self, message: frames.Message, tail: memoryview, deadline: float) -> frames.Message:
        """Handles one request; one that takes too long returns its progress."""
        if message.get("do") == "leave":
            self.close()
            return {}
        if "pack" in message or str(message.get("do")).startswith("tree-"):
            return self._open_tree(str(message["folder"])).take(message, tail, deadline)
        folder = self._open_folder(str(message["folder"]))
        if message["op"] == "piece":
            return self._write(int(message["at"]), tail)
        answers = {
            "look": lambda: folder.describe(
                [(validate_file_name(name), int(size), str(sum_)) for name, size, sum_ in message["files"]]
            ),
            "sums": lambda: folder.hash_files([validate_file_name(name) for name in message["names"]], deadline),
            "mark": lambda: folder.mark(str(message["mark"])),
            "marks": folder.marks,
            "receive": lambda: self._receive(folder, message, deadline),
            "publish": self._publish,
        }
        return answers[message["do"]]()

    def close(self) -> None:
        """Saves the hash caches and removes our marks."""
        if not self.closed:
            self.closed = True
            self._drop()
            for folder in self._folders.values():
                folder.close()
            for tree in self._trees.values():
                tree.close()

    def _open_folder(self, folder: str) -> _ReceiveFolder:
        path = self._expand_path(folder)
        if path not in self._folders:
            self._folders[path] = _ReceiveFolder(path)
        return self._folders[path]

    def _open_tree(self, root: str) -> ReceiveTree:
        path = self._expand_path(root)
        if path not in self._trees:
            self._trees[path] = ReceiveTree(path)
        return self._trees[path]

    def _expand_path(self, folder: str) -> str:
        self.path = validate_folder(folder)
        return self.path

    def _write(self, at: int, data: memoryview) -> frames.Message:
        if self._receiving is None:
            raise ValueError("received bytes without an open file")
        try:
            self._receiving[1].write(at, data)
        except OSError:
            # Its hash is ahead of the data now: the next transfer hashes again what is really there.
            self._drop()
            raise
        return {}

    def _receive(self, folder: _ReceiveFolder, message: frames.Message, deadline: float) -> frames.Message:
        name, size, sha256 = validate_file_name(message["name"]), int(message["bytes"]), str(message["sha256"])
        if self._receiving is None or not self._receiving[1].is_for(name, sha256):
            self._drop()
            folder.make()
            try:
                self._receiving = (
                    folder,
                    PartialFile(folder.fd(), name, size, sha256, mode=int(message.get("mode", 0o600)) & 0o777),
                )
            except BlockingIOError:
                return {"busy": True}
        partial = self._receiving[1]
        if message.get("assembled"):
            partial.trust()
        return {"at": partial.at} if partial.catch_up(deadline) else {"hashed": partial.at}

    def _publish(self) -> frames.Message:
        if self._receiving is None:
            raise ValueError("there is no file to publish")
        (folder, partial), self._receiving = self._receiving, None
        sha256 = partial.publish()
        if sha256 == partial.sha256:
            # What peers left of it, if they could not go on.
            PartialFile.clear(folder.fd(), piece_part_name(sha256))
            folder.sums.learn(folder.fd(), partial.name, sha256)
        return {"sha256": sha256}

    def _drop(self) -> None:
        if self._receiving is not None:
            self._receiving[1].close()
            self._receiving = None


class _ReceiveFolder:
    """One directory; it is opened once, and everything in it is reached from there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._marks: set[str] = set()
        self._cleared = False
        self._names: set[str] = set()
        self._parts: set[str] = set()
        self.sums = HashCache(path)

    def fd(self) -> int:
        if self._fd < 0:
            self._fd = open_folder(self._path)
        return self._fd

    def make(self) -> None:
        """Makes the directory and removes partial files that are no longer wanted."""
        if self._fd < 0:
            make_receive_folder(self._path)
        # Only with a list of wanted files: after a disconnect, a receiver does not know what an earlier one got.
        if self._parts and not self._cleared:
            self._cleared = True
            for name in os.listdir(self.fd()):
                if name.startswith(OWN_PREFIX) and name.endswith(PART) and name not in self._parts:
                    PartialFile.clear(self.fd(), name)

    def describe(self, files: list[tuple[str, int, str]]) -> frames.Message:
        """Which files have the expected size, how much of the others is there, and the free space."""
        self._names |= {name for name, _size, _sha256 in files}
        self._parts |= {part for _, _, sha256 in files for part in (part_name(sha256), piece_part_name(sha256))}
        fd, nearest, missing = open_nearest_folder(self._path)
        disk = os.statvfs(fd)
        answer: frames.Message = {
            "free": disk.f_bavail * disk.f_frsize,
            "device": os.fstat(fd).st_dev,
            # Checked before anything is sent; root may write whatever the mode says.
            "writable": os.access(".", os.W_OK | os.X_OK, dir_fd=fd) and not disk.f_flag & os.ST_RDONLY,
            "nearest": nearest,
            "fits": [],
            "parts": {},
            "extra": [],
        }
        os.close(fd)
        if missing:
            return answer
        for name, size, sha256 in files:
            if read_file_size(self.fd(), name, follow=True) == size:
                answer["fits"].append(name)
            part = read_file_size(self.fd(), part_name(sha256))
            part = max(part, _read_allocated_size(self.fd(), piece_part_name(sha256)))
            if 0 < part <= size:
                answer["parts"][name] = part
        others = [name for name in os.listdir(self.fd()) if name not in self._names and not name.startswith(".")]
        answer["extra"] = [name for name in sorted(others) if read_file_size(self.fd(), name, follow=True) >= 0][
            :MOST_EXTRA
        ]
        return answer

    def hash_files(self, names: list[str], deadline: float) -> frames.Message:
        hashes, read = self.sums.of(self.fd(), names, deadline)
        return {"sums": hashes, "read": read}

    def mark(self, name: str) -> frames.Message:
        """Makes a file with this name until we exit: nodes that see it share the disk."""
        self.make()
        # Of nodes that share the disk, only the first one gets the files.
        record_empty_tree(self.fd())
        self._remove_old_marks()
        # Several trees may have this directory: each has a mark of its own.
        mark = validate_file_name(MARK + name, ours=True)
        self._marks.add(mark)
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=self.fd()))
        return {}

    def _remove_old_marks(self) -> None:
        """Removes what a receiver left that was killed, or whose node lost power."""
        for name in os.listdir(self.fd()):
            if name.startswith(MARK):
                with contextlib.suppress(OSError):
                    about = os.stat(name, dir_fd=self.fd(), follow_symlinks=False)
                    if about.st_uid == os.getuid() and about.st_mtime < time.time() - OLD_SECONDS:
                        os.unlink(name, dir_fd=self.fd())

    def marks(self) -> frames.Message:
        # A directory that is reopened is looked up again, also on NFS.
        fd = open_folder(self._path)
        try:
            return {"marks": [name[len(MARK) :] for name in os.listdir(fd) if name.startswith(MARK)]}
        finally:
            os.close(fd)

    def close(self) -> None:
        for mark in self._marks:
            with contextlib.suppress(OSError):
                os.unlink(mark, dir_fd=self._fd)
        self.sums.save()


def validate_folder(folder: str) -> str:
    """The absolute path of a directory; `~` is this user's home."""
    path = os.path.expanduser(folder)
    if not os.path.isabs(path) or "\0" in path:
        raise BadName("%r is no absolute path" % folder)
    return path


def make_receive_folder(path: str) -> None:
    if TREE_SEPARATOR not in path:
        os.close(open_folder(path, make=True))


def _read_allocated_size(folder: int, name: str) -> int:
    """The space that a file with gaps takes."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return -1
    return min(status.st_size, status.st_blocks * 512)
