"""The errors of copying files to and from a node: each names the node, the path, the amount and the fix."""

from collections.abc import Sequence

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import file_fetch, file_sync
from aboard.diagnoses.untrusted import Untrusted, escape_text

_WRITE_DIAGNOSES = {
    **dict.fromkeys(("EACCES", "EPERM", "EROFS"), file_sync.DENIED),
    **dict.fromkeys(("ENOTDIR", "EISDIR", "ENAMETOOLONG", "EEXIST", "ENOENT"), file_sync.PATH),
    "ELOOP": file_sync.LINK,
}
_SHOWN = 300


def build_write_error(node: str, errno: str, path: Untrusted, why: Untrusted) -> AboardError:
    """From the errno of a failed system call on the node."""
    seen = f"{node}: {path.visible(_SHOWN)} can't be written: {why.visible(_SHOWN)}"
    if errno in ("ENOSPC", "EDQUOT"):
        return AboardError(file_sync.DISK_FULL, seen, "refused", path=path, node=node)
    if errno in _WRITE_DIAGNOSES:
        return AboardError(_WRITE_DIAGNOSES[errno], seen, path=path, node=node)
    return AboardError(file_sync.DISK, seen, "errors", node=node)


def build_no_room_error(node: str, path: Untrusted, *, free: int, needed: int) -> AboardError:
    """Known before anything is sent."""
    seen = f"{node}: {format_size(needed)} is needed in {path.visible(_SHOWN)}, but only {format_size(free)} is free"
    return AboardError(file_sync.DISK_FULL, seen, "no-room", path=path, node=node)


def build_permission_error(node: str, path: str, nearest: Untrusted) -> AboardError:
    """Found before anything is sent."""
    seen = f"{node}: {escape_text(path, _SHOWN)} can't be written: no write permission in {nearest.visible(_SHOWN)}"
    return AboardError(file_sync.DENIED, seen, path=nearest, node=node)


def build_foreign_files_error(node: str, path: str, root: str, extra: Sequence[str], *, kind: str) -> AboardError:
    """Found before anything is deleted; `root` is the directory on this machine."""
    seen = (
        f"{node}: --delete would delete {len(extra):,} files and directories in {escape_text(path, _SHOWN)}, such as"
        f" {escape_text(extra[-1], _SHOWN)}, but no earlier sync made this directory"
    )
    return AboardError(file_sync.FOREIGN, seen, kind, path=root)


def build_stuck_error(node: str, path: str, seconds: float) -> AboardError:
    """The node responds, but its disk accepts no data."""
    seen = f"{node}: {escape_text(path, _SHOWN)} accepted no data for {seconds:g} s, although the node responds"
    return AboardError(file_sync.DISK, seen, "stuck", path=path, node=node)


def build_busy_error(node: str, folder: str, name: str) -> AboardError:
    """Another head is sending the same files right now."""
    seen = f"{node}: another process is already sending {escape_text(name)} to {escape_text(folder, _SHOWN)}"
    return AboardError(file_sync.BUSY, seen, folder=folder, node=node)


def build_hash_error(node: str, path: str, *, wanted: str, found: str) -> AboardError:
    """The copy on the node has another hash, although the whole file was sent and the source is intact."""
    seen = f"{node}: {escape_text(path, _SHOWN)} has sha256 {escape_text(found)} after the copy, expected {wanted}"
    return AboardError(file_sync.HASH, seen, node=node)


def build_lost_error(node: str, why: str, tries: int) -> AboardError:
    """Every reconnect was lost again."""
    seen = f"{node}: lost the connection {tries} times while copying files; the last error: {escape_text(why, _SHOWN)}"
    return AboardError(file_sync.LOST, seen)


def build_read_error(node: str, errno: str, path: Untrusted, why: Untrusted) -> AboardError:
    """From the errno of a failed system call on the node, while files are read there."""
    if errno in ("ENOENT", "ENOTDIR"):
        seen = f"{path.visible(_SHOWN)} is not on {node}: {why.visible(_SHOWN)}"
        return AboardError(file_fetch.MISSING, seen, path=path, node=node)
    seen = f"{node}: {path.visible(_SHOWN)} can't be read: {why.visible(_SHOWN)}"
    return AboardError(file_fetch.UNREADABLE, seen, path=path, node=node)


def build_changed_error(node: str, path: str, why: str) -> AboardError:
    """What came is not what was expected."""
    return AboardError(file_fetch.CHANGED, f"{node}: {escape_text(path, _SHOWN)} {why}", path=path, node=node)


def build_name_error(node: str, name: Untrusted) -> AboardError:
    seen = f"{node} listed {name.visible(_SHOWN)!r}, which could lead out of the target directory"
    return AboardError(file_fetch.NAMES, seen, node=node)
