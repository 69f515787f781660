"""What keeps a node from taking in a file, in words: which node, which path, how much, and what to type."""

from aboard.core.size import size
from aboard.core.words import visible
from aboard.diagnoses import AboardError, spread
from aboard.diagnoses.untrusted import Untrusted

_FULL = {"ENOSPC", "EDQUOT"}
_DENIED = {"EACCES", "EPERM", "EROFS"}
_PATH = {"ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EEXIST", "ENOENT"}
_SHOWN = 300


def refused(node: str, errno: str, path: Untrusted, why: Untrusted) -> AboardError:
    """From what a system call of the node's said."""
    seen = f"{node}: {path.visible(_SHOWN)} can't be written: {why.visible(_SHOWN)}"
    if errno in _FULL:
        return AboardError(spread.DISK_FULL, seen, "refused", path=path, node=node)
    if errno in _DENIED:
        return AboardError(spread.DENIED, seen, path=path, node=node)
    if errno in _PATH:
        return AboardError(spread.PATH, seen, path=path, node=node)
    return AboardError(spread.DISK, seen, "errors", node=node)


def no_room(node: str, path: Untrusted, *, free: int, needed: int) -> AboardError:
    """Known before anything is sent."""
    seen = f"{node}: {size(needed)} must go to {path.visible(_SHOWN)}, and {size(free)} is free there"
    return AboardError(spread.DISK_FULL, seen, "no-room", path=path, node=node)


def not_writable(node: str, path: str, nearest: Untrusted) -> AboardError:
    """Known before anything is sent."""
    seen = f"{node}: {visible(path, _SHOWN)} can't be written: the user may not write in {nearest.visible(_SHOWN)}"
    return AboardError(spread.DENIED, seen, path=nearest, node=node)


def stuck(node: str, path: str, seconds: float) -> AboardError:
    """The node answers, and its disk doesn't."""
    seen = f"{node}: {visible(path, _SHOWN)} took nothing in for {seconds:g} s, while the node itself answers"
    return AboardError(spread.DISK, seen, "stuck", path=path, node=node)


def busy(node: str, folder: str, name: str) -> AboardError:
    """Another head sends the same at this moment."""
    seen = f"{node}: somebody else is sending {visible(name)} to {visible(folder, _SHOWN)} now"
    return AboardError(spread.BUSY, seen, folder=folder, node=node)


def differs(node: str, path: str, *, wanted: str, found: str) -> AboardError:
    """Sent whole, from a file that is right, and yet it isn't the same there."""
    seen = f"{node}: {visible(path, _SHOWN)} has sha256 {visible(found)} after it was sent, and should have {wanted}"
    return AboardError(spread.HASH, seen, node=node)


def lost(node: str, why: str, tries: int) -> AboardError:
    """Dialled again and again, and lost again each time."""
    seen = f"{node}: it was lost {tries} times while files were sent to it; last: {visible(why, _SHOWN)}"
    return AboardError(spread.LOST, seen)
