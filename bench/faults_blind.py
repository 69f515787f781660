"""Faults that no rule was written for, each of another kind or in another phase than those of `faults_cases`.

The codes are those that a user would take for the cause, chosen only from the explanations of the codes.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

from aboard.sandbox.faults.host.control_groups import MemoryLimit
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from faults_cases import MEMORY, UNHEARD, Case, outside, own
from faults_stage import Stage
from faults_troubles import Broken, Helper

# Another user's program that has the lock of a cache.
_LOCKED = """
import fcntl, os, time
file = open("/private/data/cache.lock", "w")
os.chmod(file.name, 0o666)
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """All processes of a node stand still, as when its hypervisor pauses them; its kernel still acknowledges."""

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        host = stage.box.host(node)
        pids = [pid for pid in host.pids() if pid != host.pid]
        try:
            _signal(pids, signal.SIGSTOP)
            yield
        finally:
            _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


_CASES: tuple[Case, ...] = (
    own(
        "unknown argument on all",
        63,
        "import",
        "usage",
        "run-exited",
        "log-arguments",
        who="all",
        anywhere=True,
        rank=False,
    ),
    own("import compiles for ever", 56, "import", "build", "init-rank-late", "init-import-slow"),
    own(
        "lock of a file taken",
        56,
        "init",
        "file-lock",
        "init-rank-late",
        "hang-lock",
        by_hand="a person must decide which program releases its lock",
        beneath=Helper(code=_LOCKED, after="rm -f /private/data/cache.lock"),
    ),
    # On one rank alone it does no harm here: the higher address of two connects, and 127 is above 10.
    own(
        "loopback as interface on all",
        10,
        "init",
        "loopback",
        "init-loopback",
        who="all",
        anywhere=True,
        rank=False,
    ),
    own(
        "reader thread dies in the first step",
        63,
        "run",
        "reader",
        "hang-data",
        "hang-lock",
        env=(("FAULT_STEP", "0"),),
    ),
    own("data worker hangs", 63, "run", "worker", "hang-data"),
    own("raises, and its child lives on", 9, "run", "raise-with-child", "run-raised"),
    outside("node frozen", 66, "run", Frozen(), *UNHEARD, by_hand="whoever paused the machine must resume it"),
    outside("connections reset", 22, "run", FirewallReject(network="fabric"), "hang-link-cut", "network-reset"),
    own("barrier of one rank", 68, "checkpoint", "barrier", "hang-mismatch", victim=0),
    own("leaves with code 0", 64, "checkpoint", "leave", "hang-uneven", "run-exited"),
    # Nothing is sent until the evaluation is over.
    outside(
        "network dropped on the way out",
        21,
        "evaluation",
        FirewallDrop(network="fabric", way="out"),
        "hang-link-cut",
        env=(("EVALUATION_SECONDS", "3"),),
    ),
    own(
        "child out of memory",
        16,
        "evaluation",
        "greedy-child",
        "run-out-of-memory",
        "run-raised",
        by_hand=MEMORY,
        beneath=Broken(fault=MemoryLimit(mib=1600)),
    ),
    own(
        "a thread never ends",
        64,
        "end",
        "thread",
        "hang-lock",
        "hang-uneven",
        "hang-absent",
        env=(("STEPS", "30"),),
    ),
)
BLIND = tuple(replace(case, blind=1) for case in _CASES)
