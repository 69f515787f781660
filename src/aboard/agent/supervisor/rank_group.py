"""A control group (cgroup v2) for the ranks of a run, where one is delegated to the user: cgroups(7).

To kill it reaches whatever the ranks started, whatever that did to its parents, environment and limits.
"""

from __future__ import annotations

import contextlib
import os
import time

from aboard.agent.procfs import read_kernel_file

KILL_SECONDS = 2.0
# A walk through more groups than this would take longer than the sweep that it ends.
MOST_GROUPS = 20_000


def make_group(run: str) -> str:
    """Makes the run's group below our own; returns its directory, or "" where none is delegated to us."""
    with contextlib.suppress(OSError, ValueError):
        own = _find_own_group()
        # Root may write everywhere, and systemd does not expect that of it.
        if own and os.getuid() and os.stat(own).st_uid == os.getuid() and os.access(own + "/cgroup.procs", os.W_OK):
            path = os.path.join(own, name_group(run))
            os.mkdir(path)
            return path
    return ""


def enter_group(path: str) -> None:
    """Moves this process into the group, with all that it will start."""
    with contextlib.suppress(OSError), open(path + "/cgroup.procs", "wb", 0) as processes:
        processes.write(b"0")


def kill_group(run: str, *, anywhere: bool = False) -> None:
    """Kills and removes the run's group below our own, or anywhere: a bridge may have come by another login."""
    path = _find_group(run, anywhere=anywhere)
    if not path:
        return
    deadline = time.monotonic() + KILL_SECONDS
    with contextlib.suppress(OSError), open(path + "/cgroup.kill", "wb", 0) as kill:
        kill.write(b"1")
    while b"populated 1" in read_kernel_file(path + "/cgroup.events") and time.monotonic() < deadline:
        # The kernel needs a moment to remove a killed process.
        time.sleep(0.01)
    # From the bottom: ranks may have made groups of their own.
    for folder, _names, _files in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def name_group(run: str) -> str:
    return "aboard-" + run


def _find_group(run: str, *, anywhere: bool) -> str:
    with contextlib.suppress(OSError, ValueError):
        own = _find_own_group()
        groups = [os.path.join(own, name_group(run))] if own else []
        for path in groups + (_list_groups(_find_mount()[0]) if anywhere else []):
            # Another user may have a group of the same name.
            own_name = os.path.basename(path) == name_group(run) and os.path.isdir(path)
            if own_name and os.stat(path).st_uid == os.getuid():
                return path
    return ""


def _list_groups(mount: str) -> list[str]:
    groups: list[str] = []
    for folder, _names, _files in os.walk(mount) if mount else ():
        groups.append(folder)
        if len(groups) >= MOST_GROUPS:
            break
    return groups


def _find_own_group() -> str:
    mount, root = _find_mount()
    for line in read_kernel_file("/proc/self/cgroup").decode("utf-8", "replace").splitlines():
        number, _controllers, path = line.split(":", 2)
        # Where the mount shows only a part of the tree, our path must be in it.
        if number == "0" and mount and ".." not in path and (path + "/").startswith(root.rstrip("/") + "/"):
            return (mount + path[len(root.rstrip("/")) :]).rstrip("/")
    return ""


def _find_mount() -> tuple[str, str]:
    """Where cgroup v2 is mounted, alone or beside v1, and which part of the tree: proc(5), mountinfo."""
    for line in read_kernel_file("/proc/self/mountinfo", 1 << 20).decode("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            words = before.split()
            return words[4], words[3]
    return "", ""
