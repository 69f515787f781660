"""What a node runs to describe its storage: Python 3.9 and the standard library; whatever could hang runs in a child.

    look WORKDIR              the directories that a run needs, and the mounts that don't answer
    room OUTPUT               the disk behind a directory that the run will write to
    write WORKDIR             leaves a nonce there for others, and says its name
    read WORKDIR NAME WAIT    reads it back, for WAIT seconds if need be, and maps a file of its own into memory
    remove WORKDIR NAME       takes it away

All print one line of JSON.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import select
import sys
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# A server that is only slow answers within this; a dead one never does.
MOUNT_SECONDS = 3.0
NETWORK_TYPES = (
    "nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "9p", "afs", "orangefs", "pvfs2",
    "wekafs", "panfs",
)  # fmt: skip
MAX_MOUNTS = 64
NONCE = ".aboard-nonce-"
_OLD_SECONDS = 3600
# Mounts of other users' sessions are nobody's storage.
_PRIVATE_FUSE = ("fuse.gvfsd-fuse", "fuse.portal", "fuse.lxcfs", "fuse.snapfuse")
_GONE = (errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV, errno.ECONNABORTED)
_OCTAL = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def survey_directories(workdir: str) -> dict[str, Any]:
    mounts = list_mounts()
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - only inspected
    places = {"workdir": workdir, "home": os.path.expanduser("~"), "tmp": temporary}
    places = {role: path for role, path in places.items() if path}
    remote = [point for point, mount in mounts.items() if mount["network"]][:MAX_MOUNTS]
    jobs: dict[str, Callable[[], dict[str, Any]]] = {"mount " + point: _bind(touch_mount, point) for point in remote}
    jobs.update({"place " + role: _bind(describe_directory, path) for role, path in places.items()})
    answers = run_in_children(jobs)
    dead = []
    for point in remote:
        answer = answers["mount " + point]
        if answer.get("silent") or answer.get("errno") in _GONE:
            dead.append(dict(mounts[point], why=answer.get("error") or "no answer within %g s" % MOUNT_SECONDS))
    seen = {role: add_mount(answers["place " + role], path, mounts) for role, path in places.items()}
    return {"uid": os.getuid(), "places": seen, "dead": dead}


def survey_room(path: str) -> dict[str, Any]:
    """The run will make the directory: what counts is the nearest one above that is there."""

    def describe_nearest() -> dict[str, Any]:
        there = path
        while there != "/" and not os.path.lexists(there):
            there = os.path.dirname(there)
        return describe_directory(there)

    mounts = list_mounts()
    return add_mount(run_in_children({"room": describe_nearest})["room"], path, mounts)


def write_nonce(workdir: str) -> dict[str, Any]:
    for name in os.listdir(workdir):
        # What a check that was cut short has left, hours ago.
        path = os.path.join(workdir, name)
        if name.startswith(NONCE):
            stat = os.lstat(path)
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > _OLD_SECONDS:
                os.unlink(path)
    nonce = os.urandom(16).hex()
    name = NONCE + os.urandom(8).hex()
    path = os.path.join(workdir, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(fd, nonce.encode())
        os.fsync(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    return {"name": name, "nonce": nonce}


def read_nonce(workdir: str, name: str, wait: str) -> dict[str, Any]:
    deadline = time.monotonic() + float(wait)
    nonce = ""
    while True:
        try:
            # Nobody has looked for this name before, so no cache of NFS can say that it isn't there.
            with open(os.path.join(workdir, name), encoding="ascii", errors="replace") as file:
                nonce = file.read(64)
            break
        except FileNotFoundError:
            if time.monotonic() > deadline:
                break
        time.sleep(0.1)
    return {"nonce": nonce, "mapped": map_own_file(workdir)}


def remove_nonce(workdir: str, name: str) -> dict[str, Any]:
    os.unlink(os.path.join(workdir, name))
    return {}


def list_mounts() -> dict[str, dict[str, Any]]:
    """By mount point; the last mount on a point is the one that is seen."""
    found: dict[str, dict[str, Any]] = {}
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            source, point, kind = line.split(" ")[:3]
            for octal, letter in _OCTAL:
                point = point.replace(octal, letter)
            found.pop(point, None)
            network = kind in NETWORK_TYPES or (kind.startswith("fuse.") and kind not in _PRIVATE_FUSE)
            found[point] = {"point": point, "type": kind, "source": source, "network": network}
    return found


def add_mount(answer: Mapping[str, Any], path: str, mounts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of a directory, with the mount that it is on."""
    point = answer.get("real", path)
    while point not in mounts and point not in {"", "/"}:
        point = os.path.dirname(point)
    mount = mounts.get(point, {"point": "/", "type": "", "source": "", "network": False})
    kind, source, network = mount["type"], mount["source"], mount["network"]
    return dict(answer, path=path, mount=mount["point"], type=kind, source=source, network=network)


def run_in_children(jobs: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """One that hangs on a dead mount can't even be killed: it is left behind, and goes when the mount comes back."""
    waiting: dict[int, tuple[str, int]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for name, job in jobs.items():
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                try:
                    outcome = job()
                except OSError as error:
                    outcome = {"error": error.strerror, "errno": error.errno}
                os.write(theirs, json.dumps(outcome).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        waiting[ours] = (name, pid)
    deadline = time.monotonic() + MOUNT_SECONDS
    while waiting and time.monotonic() < deadline:
        for fd in select.select(list(waiting), [], [], max(0, deadline - time.monotonic()))[0]:
            text = os.read(fd, 65536)
            name, pid = waiting.pop(fd)
            answers[name] = json.loads(text) if text else {"error": "no answer", "errno": 0}
    for name, pid in waiting.values():
        os.kill(pid, 9)
        answers[name] = {"silent": True}
    return answers


def describe_directory(path: str) -> dict[str, Any]:
    stat = os.stat(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    disk = os.statvfs(path)
    return {
        "real": os.path.realpath(path),
        "size": disk.f_blocks * disk.f_frsize,
        "free": disk.f_bavail * disk.f_frsize,
        "inodes": disk.f_files,
        "inodes_free": disk.f_favail,
        "read_only": bool(disk.f_flag & os.ST_RDONLY),
        "writable": os.access(path, os.W_OK | os.X_OK),
        "owner": stat.st_uid,
    }


def touch_mount(point: str) -> dict[str, Any]:
    os.statvfs(point)
    return {}


def _bind(job: Callable[[str], dict[str, Any]], path: str) -> Callable[[], dict[str, Any]]:
    return lambda: job(path)


def map_own_file(top: str) -> dict[str, Any]:
    """Writes a file and maps it into memory, as Arrow and safetensors do; the step that failed, and its error."""
    path = os.path.join(top, NONCE + os.urandom(8).hex())
    step = "write"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        return {"step": step, "error": error.strerror}
    try:
        os.write(fd, b"aboard" * 1000)
        os.fsync(fd)
        step = "map"
        with mmap.mmap(fd, 6000, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            if view[:6] != b"aboard" or view[-6:] != b"aboard":
                return {"step": step, "error": "the data read back differs from what was written"}
    except OSError as error:
        return {"step": step, "error": error.strerror}
    finally:
        os.close(fd)
        os.unlink(path)
    return {"step": "", "error": ""}


def main(what: str, *words: str) -> None:
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "look": survey_directories,
        "room": survey_room,
        "write": write_nonce,
        "read": read_nonce,
        "remove": remove_nonce,
    }
    try:
        answer = commands[what](*words)
    except OSError as error:
        answer = {"error": error.strerror}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # A child that hangs must not delay the end.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
