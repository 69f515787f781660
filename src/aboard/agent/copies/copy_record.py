"""`copies.json` beside a checkpoint's marker: the files of another disk that this disk has, or will have, a copy of.

The trainer writes it before it publishes the checkpoint; from then on, only the copier changes its `state`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat

from aboard.agent import frames
from aboard.agent.transfer.file_names import read_file_size, validate_file_name
from aboard.agent.transfer.partial_file import part_name

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "copies.json"
STEP = re.compile(r"step-\d{6,20}(-\d{1,6})?")
# The only files of a checkpoint that a copier sends or writes.
PART = re.compile(r"rank-[\w.-]{1,100}|manifest\.json", re.ASCII)
COPIED, COPYING, FULL = "copied", "copying", "full"
FIELDS = {"serial": int, "leader": int, "source": int, "files": [(str, int, str)]}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CopiedFile:
    """A file by name, size and hash."""

    def __init__(self, name: str, size: int, sha256: str) -> None:
        self.name = validate_file_name(name)
        if not PART.fullmatch(self.name):
            raise ValueError("%r is no file of a checkpoint that copiers write" % self.name)
        self.size = size
        self.sha256 = sha256
        # Validates it.
        part_name(sha256)

    def is_in(self, folder: int) -> bool:
        return read_file_size(folder, self.name) == self.size


class CopyRecord:
    """One checkpoint's record, with its open directory."""

    def __init__(self, root: int, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.folder = os.open(checkpoint, _DIRECTORY, dir_fd=root)
        try:
            self._content = self._read()
            fields = frames.decode_fields(self._content, FIELDS)
            self.serial: int = fields["serial"]
            # The ranks that lead this disk and the one that the files come from.
            self.leader, self.source = fields["leader"], fields["source"]
            self.files = [CopiedFile(*each) for each in fields["files"]]
        except BaseException:
            self.close()
            raise

    @property
    def state(self) -> str:
        return str(self._content.get("state"))

    def set_state(self, state: str) -> None:
        """Durably: a checkpoint that counts as copied keeps older ones from being needed."""
        self._content["state"] = state
        draft = "%s.%d" % (NAME, os.getpid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o644, dir_fd=self.folder), "w") as file:
            json.dump(self._content, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, NAME, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        os.fsync(self.folder)

    def list_missing(self) -> list[CopiedFile]:
        return [file for file in self.files if not file.is_in(self.folder)]

    def count_own_bytes(self) -> int:
        """What the ranks of this disk wrote: their next save needs as much."""
        copies = {file.name for file in self.files}
        return sum(max(0, read_file_size(self.folder, name)) for name in os.listdir(self.folder) if name not in copies)

    def close(self) -> None:
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def _read(self) -> frames.Message:
        fd = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.folder)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("%s is no file" % NAME)
            return frames.unpack(file.read(frames.LIMIT + 1))


def list_records(root: int) -> Iterator[CopyRecord]:
    """The records below an output directory; one that can't be read is left out. The caller closes them."""
    for name in os.listdir(root):
        if STEP.fullmatch(name):
            with contextlib.suppress(OSError, ValueError):
                yield CopyRecord(root, name)
