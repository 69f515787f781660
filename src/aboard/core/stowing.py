"""What keeps a node from taking in a file, in words: which node, which path, how much, and what to type."""

import shlex

from aboard.core.size import size
from aboard.core.words import visible
from aboard.diagnoses import AboardError

_FULL = {"ENOSPC", "EDQUOT"}
_DENIED = {"EACCES", "EPERM", "EROFS"}
_PATH = {"ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EEXIST", "ENOENT"}
_SHOWN = 300


def refused(node: str, errno: str, path: str, why: str) -> AboardError:
    """From what a system call of the node's said."""
    seen = f"{node}: {visible(path, _SHOWN)} can't be written: {visible(why, _SHOWN)}"
    where = shlex.quote(path)
    if errno in _FULL:
        return AboardError("spread-disk-full", seen, fix=f"df -h {where}    # on {node}; or a quota: quota -s")
    if errno in _DENIED:
        return AboardError("spread-denied", seen, fix=f"namei -l {where}    # on {node}; who may write where")
    if errno in _PATH:
        return AboardError("spread-path", seen, fix=f"ls -ld {where}    # on {node}; something else has this name")
    return AboardError("spread-disk", seen, fix=f"sudo dmesg | tail    # on {node}; were there disk errors?")


def no_room(node: str, path: str, *, free: int, needed: int) -> AboardError:
    """Known before anything is sent."""
    seen = f"{node}: {size(needed)} must go to {visible(path, _SHOWN)}, and {size(free)} is free there"
    fix = f"du -xh {shlex.quote(path)} | sort -h | tail    # on {node}; what is largest there? Make room"
    return AboardError("spread-disk-full", seen, fix=fix)


def not_writable(node: str, path: str, nearest: str) -> AboardError:
    """Known before anything is sent."""
    seen = f"{node}: {visible(path, _SHOWN)} can't be written: the user may not write in {visible(nearest, _SHOWN)}"
    fix = f"namei -l {shlex.quote(nearest)}    # on {node}; who may write where"
    return AboardError("spread-denied", seen, fix=fix)


def stuck(node: str, path: str, seconds: float) -> AboardError:
    """The node answers, and its disk doesn't."""
    seen = f"{node}: {visible(path, _SHOWN)} took nothing in for {seconds:g} s, while the node itself answers"
    fix = f"timeout 5 df -h {shlex.quote(path)}    # on {node}; does a mount hang?"
    return AboardError("spread-disk", seen, fix=fix)


def busy(node: str, folder: str, name: str) -> AboardError:
    """Another head sends the same at this moment."""
    seen = f"{node}: somebody else is sending {visible(name)} to {visible(folder, _SHOWN)} now"
    fix = f"fuser -v {shlex.quote(folder)}/.aboard-*.part    # on {node}; wait for it, then try again"
    return AboardError("spread-busy", seen, fix=fix)


def differs(node: str, path: str, *, wanted: str, found: str) -> AboardError:
    """Sent whole, from a file that is right, and yet it isn't the same there."""
    seen = f"{node}: {visible(path, _SHOWN)} has sha256 {visible(found)} after it was sent, and should have {wanted}"
    return AboardError("spread-hash", seen, fix=f"sudo dmesg | tail    # on {node}; a bad disk or bad memory?")


def lost(node: str, why: str, tries: int) -> AboardError:
    """Dialled again and again, and lost again each time."""
    seen = f"{node}: it was lost {tries} times while files were sent to it; last: {visible(why, _SHOWN)}"
    return AboardError("spread-lost", seen, fix="aboard check    # then try again: it goes on where it was")
