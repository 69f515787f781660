"""Records the directories that `aboard sync` made on this node: only there, `--delete` deletes without a typed path."""

from __future__ import annotations

import contextlib
import hashlib
import os

from aboard.agent.private_folders import make_private_folder
from aboard.agent.transfer.file_names import OWN_PREFIX


def record_tree(root: int) -> None:
    """Records an open directory. If that fails, the next `--delete` is refused, which is safe."""
    path = _locate_record(root)
    with contextlib.suppress(OSError):
        make_private_folder(os.path.dirname(path))
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def record_empty_tree(root: int) -> None:
    """Records a directory that has nothing but files of ours: whatever will be in it comes from a sync, or later."""
    if all(name.startswith(OWN_PREFIX) for name in os.listdir(root)):
        record_tree(root)


def is_recorded(root: int) -> bool:
    return os.path.isfile(_locate_record(root))


def _locate_record(root: int) -> str:
    """By path and inode number: not another directory that has the name by now; and all nodes of an NFS share agree."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    whole = b"%d:%s" % (os.fstat(root).st_ino, os.readlink(b"/proc/self/fd/%d" % root))
    return os.path.join(base, "aboard", "synced", hashlib.sha256(whole).hexdigest()[:32])
