"""Counts the CPU seconds of commands and of everything they start, by a control group of their own.

The resource usage of a child omits daemons, which no one waits for: in ground tests that is every host of a sandbox.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
# Killed processes leave their group a moment later.
_REMOVE_TIMEOUT = 2.0
_ENTER = 'echo $$ >"$0/cgroup.procs"; exec "$@"'


class CpuGroup:
    """A control group, and the commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wrap_command(self, argv: Sequence[str]) -> list[str]:
        """The command, which enters the group before it starts: what it starts is then in the group, too."""
        return ["sh", "-c", _ENTER, str(self.folder), *argv]

    def read_seconds(self) -> float | None:
        """The CPU seconds so far; None if nothing was counted."""
        for name in ("cpuacct.usage", "cpu.stat"):
            with suppress(OSError):
                return parse_usage((self.folder / name).read_text("ascii"))
        return None


@contextmanager
def open_cpu_group(name: str) -> Iterator[CpuGroup | None]:
    """A new control group below our own, removed in the end; None where none can be made."""
    try:
        own = find_own_group(OWN_GROUPS.read_text("utf-8"), CONTROL_GROUPS)
        folder = None if own is None else own / f"aboard-{os.getpid()}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
        if folder is not None:
            folder.mkdir()
    except OSError:
        folder = None
    if folder is None:
        yield None
        return
    try:
        yield CpuGroup(folder)
    finally:
        _remove_group(folder)


def find_own_group(groups: str, root: Path) -> Path | None:
    """Our own group in the tree that counts CPU time: cpuacct of version 1, else version 2; None if neither is mounted.

    `groups` is the text of /proc/self/cgroup.
    """
    paths = {}
    for line in groups.splitlines():
        _number, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    for tree, name, file in ((root / "cpuacct", "cpuacct", "cpuacct.usage"), (root, "", "cgroup.controllers")):
        # In a container the tree may begin with the container's group, whose path is that on the machine.
        for place in (tree / paths[name].lstrip("/"), tree) if name in paths else ():
            if (place / file).exists():
                return place
    return None


def parse_usage(text: str) -> float | None:
    """Seconds, from the nanoseconds of cpuacct.usage or the microseconds of cpu.stat; None for 0: nobody entered."""
    found = re.match(r"(?:usage_usec )?(\d+)$", text, re.MULTILINE)
    if found is None:
        return None
    return int(found[1]) / (1e6 if text.startswith("usage_usec") else 1e9) or None


def _remove_group(folder: Path) -> None:
    """Moves what is left in it and in the groups below to the group above, then removes them."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT
    while folder.exists():
        for inner in sorted((path.parent for path in folder.rglob("cgroup.procs")), reverse=True):
            with suppress(OSError):
                for process in (inner / "cgroup.procs").read_text("ascii").split():
                    with suppress(OSError):
                        (folder.parent / "cgroup.procs").write_text(process, "ascii")
                inner.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
