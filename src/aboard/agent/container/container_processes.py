"""Tells the processes inside a container from those of its runtime, as seen from outside.

The process that we start is the runtime's. With Apptainer the rank is its child; with Podman it belongs to another
parent, in its own session and PID namespace; with Docker to a daemon. So it is found by its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from aboard.agent import process_tree, procfs
from aboard.agent.event_loop import EventLoop

# The child's number, in the environment of all its processes inside.
MARK = "ABOARD_CONTAINER"
# As in /proc/PID/comm. Some run in a mount namespace of their own, but outside the container.
STARTERS = (b"apptainer", b"singularity", b"starter", b"starter-suid", b"crun", b"runc")
# They serve a container until its rank has exited, and exit then.
HELPERS = (
    b"podman", b"docker", b"conmon", b"squashfuse", b"squashfuse_ll", b"fuse2fs", b"fuse-overlayfs", b"gocryptfs",
)  # fmt: skip
# The first process of a container, which only waits for the rank and passes signals on to it.
INIT_PROGRAMS = (b"podman-init", b"docker-init", b"catatonit", b"tini", b"dumb-init", b"appinit", b"sinit")
# Their containers outlive the process that we start.
DETACHED_RUNTIMES = ("docker", "podman")
# What they return for a command that died of a signal is this plus its number: podman-run(1).
SIGNAL_BASE = 128


class ContainerProcesses:
    """The containers of a run on this node, by child."""

    def __init__(self, loop: EventLoop, run: str) -> None:
        self._loop = loop
        self._run = run
        self._children: dict[str, _Child] = {}

    def add(self, name: str, runtime: str, env: dict[str, str]) -> None:
        """Marks a child's environment before it starts."""
        env[MARK] = str(len(self._children))
        self._children[name] = _Child(env[MARK], runtime)

    def find_ranks(self, clients: Mapping[str, int]) -> dict[str, int]:
        """The first process inside of each of these children, or the runtime's own while there is none."""
        self._look(clients)
        ranks = {name: self._children[name].rank for name in clients if name in self._children}
        return {**clients, **{name: rank for name, rank in ranks.items() if rank}}

    def list_group(self, name: str, client: int) -> list[int]:
        """The processes that a signal to the child is for: the rank's group, without the runtime.

        The runtime would pass the signal on, and the rank would get it twice.
        """
        rank = self.find_ranks({name: client})[name]
        group = _read_group(rank)
        family = {rank, *process_tree.list_descendants(rank)}
        return sorted(pid for pid in family if rank == client or _read_group(pid) == group)

    def select_targets(self, alive: set[int], clients: Mapping[str, int], begun: set[str]) -> set[int]:
        """Those of our living processes that a request to terminate is for; the runtimes exit after their ranks.

        `begun` are children whose rank has reported something; it may have exited a moment ago.
        """
        ranks = self.find_ranks(clients)
        spaces = {_read_namespace(rank) for name, rank in ranks.items() if rank != clients[name]}
        inside = {pid for pid in alive if _read_namespace(pid) in spaces}
        spared = {pid for pid in alive if _read_name(pid) in (INIT_PROGRAMS if pid in inside else HELPERS)}
        for name, client in clients.items():
            family = {client, *process_tree.list_descendants(client)} - inside
            if name not in self._children or (name not in begun and ranks[name] == client):
                spared -= family
            else:
                spared |= family
        return alive - spared

    def finish(self, name: str, code: int) -> tuple[int, float | None]:
        """Kills a rank that outlives its runtime; returns its exit code as outside, and when it exited if known."""
        child = self._children.get(name)
        if child is None:
            return code, None
        if child.runtime in DETACHED_RUNTIMES:
            self._look({name: 0})
        # Never 0, which would be our own group.
        process_tree.send_signal([pid for pid in (child.rank, child.first) if pid], signal.SIGKILL)
        if child.runtime in DETACHED_RUNTIMES and SIGNAL_BASE < code < SIGNAL_BASE + signal.NSIG:
            code = SIGNAL_BASE - code
        return code, child.exited_at

    def _look(self, clients: Mapping[str, int]) -> None:
        """Scans all processes only while a rank is unknown: a runtime may unpack for minutes before it starts one."""
        missing = {child.mark: child for name, child in self._children.items() if name in clients and not child.rank}
        if not missing:
            return
        found: dict[str, list[int]] = {}
        for pid in process_tree.find_run_processes(self._run):
            env = procfs.parse_environ(procfs.read_environ(pid))
            mark = env.get(MARK.encode(), b"").decode("ascii", "replace")
            if mark in missing and _is_inside(pid):
                found.setdefault(mark, []).append(pid)
        for mark, pids in found.items():
            missing[mark].take(pids)
            self._watch(missing[mark])

    def _watch(self, child: _Child) -> None:
        """Notes when its rank exits: the runtime takes up to seconds more, and peers report the loss before."""
        # Missing from kernels before 5.3, and from a Python that was built on one.
        with contextlib.suppress(OSError, AttributeError):
            fd = os.pidfd_open(child.rank)

            def note() -> None:
                child.exited_at = child.exited_at or time.time()
                self._loop.remove_fd(fd)
                os.close(fd)

            self._loop.on_readable(fd, note)


class _Child:
    """One child in a container, and its first process and rank inside once they are known."""

    def __init__(self, mark: str, runtime: str) -> None:
        self.mark = mark
        self.runtime = runtime
        self.exited_at: float | None = None
        self._first = self._rank = (0, b"")

    @property
    def first(self) -> int:
        """The container's first process, which may be an init; 0 if it has exited."""
        return self._first[0] if self._first[0] and _read_born(self._first[0]) == self._first[1] else 0

    @property
    def rank(self) -> int:
        """The rank's own process; 0 if it is unknown or has exited."""
        return self._rank[0] if self._rank[0] and _read_born(self._rank[0]) == self._rank[1] else 0

    def take(self, pids: list[int]) -> None:
        """Takes the oldest as first; descendants carry the same mark."""
        by_age = sorted(pids, key=lambda pid: (int(_read_born(pid) or 0), pid))
        ranks = [pid for pid in by_age if _read_name(pid) not in INIT_PROGRAMS]
        if ranks:
            self._first, self._rank = ((pid, _read_born(pid)) for pid in (by_age[0], ranks[0]))


def _is_inside(pid: int) -> bool:
    is_apart = _read_namespace(pid) not in (0, _read_namespace(os.getpid()))
    return is_apart and _read_name(pid) not in STARTERS + HELPERS


def _read_namespace(pid: int) -> int:
    """Its mount namespace, which unlike a root directory is never on a dead mount; 0 if it can't be read."""
    return procfs.read_namespace(pid, "mnt")


def _read_name(pid: int) -> bytes:
    return procfs.read_kernel_file("/proc/%d/comm" % pid).strip()


def _read_born(pid: int) -> bytes:
    fields = procfs.read_stat(pid)
    return fields[procfs.START_TIME] if fields and fields[procfs.STATE] not in (b"Z", b"X") else b""


def _read_group(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return 0
