"""One process of a training that somebody else started, by its environment and its command line.

Both are read here and stay here, for they hold secrets: only its numbers, where it meets the others, its directory and
its script's name leave the node.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time

from aboard.agent import launchers, tree
from aboard.agent.processes import TICKS, read, stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# How a rank is told which one of how many it is: torchrun and all that keep to its words, Slurm, Open MPI.
NUMBERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
# Which of Slurm's steps it is of: its ranks may be told where to meet by other ways than by their environment.
JOB, STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
# With it, torchrun's own process has the store, and rank 0 is a guest there as all others.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
WORDS = {word for pair in NUMBERS for word in pair} | {
    ADDRESS,
    PORT,
    AGENT_STORE,
    JOB,
    STEP,
    tree.RUN_ID,
    *launchers.VARIABLES,
}
ENVIRON_LIMIT = 1024 * 1024
MAPS_LIMIT = 16 * 1024 * 1024
LONGEST = 255
# starttime in /proc/PID/stat, counted from the state behind the name: proc(5).
BEGAN = 19


class Process:
    """One process, by its environment and its command line."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.env = environment(read("/proc/%d/environ" % pid, ENVIRON_LIMIT))
        self.words = [word.decode("utf-8", "replace") for word in read("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]
        self.launcher = launchers.launcher(self.words)
        self.numbers = numbers(self.env)

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.numbers, self.env.get(ADDRESS), self.env.get(PORT)

    @property
    def python(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink("/proc/%d/exe" % self.pid)).startswith(("python", "pypy"))
        return False

    @property
    def torch(self) -> bool:
        return b"/libtorch" in read("/proc/%d/maps" % self.pid, MAPS_LIMIT)

    def told(self) -> dict[str, Any]:
        rank, world = self.numbers if self.numbers is not None else (None, None)
        told: dict[str, Any] = {
            "pid": self.pid,
            "rank": rank,
            "world": world,
            "address": self.env.get(ADDRESS, ""),
            "port": _count(self.env.get(PORT, "")),
            "job": "%s.%s" % (self.env[JOB], self.env[STEP]) if JOB in self.env and STEP in self.env else "",
            "torch": self.torch,
            "hosts": rank == 0 and self.env.get(AGENT_STORE) != "True",
        }
        if self.launcher:
            met = launchers.meeting(self.words, self.env)
            told.update(
                rank=_count(met.get("number", "")), world=_count(met["nodes"]), address=met["address"][:LONGEST]
            )
            told.update(port=_count(met["port"]), hosts=told["rank"] == 0, launcher=self.launcher)
        told.update(cwd=_cwd(self.pid), began=_began(self.pid), user=user(self.pid), what=what(self.words))
        return told


def environment(raw: bytes) -> dict[str, str]:
    """Of all variables, those few that tell which rank it is, and of which world."""
    found = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        word = name.decode("ascii", "replace")
        if word in WORDS:
            found[word] = value.decode("ascii", "replace")[:LONGEST]
    return found


def numbers(env: dict[str, str]) -> tuple[int, int] | None:
    """Its rank and how many there are, by the first launcher's words that it has."""
    for rank, world in NUMBERS:
        one, all_ = _count(env.get(rank, "")), _count(env.get(world, ""))
        if one is not None and all_ is not None and one < all_:
            return one, all_
    return None


def what(words: Sequence[str]) -> str:
    """The program and its script or module, as in `python train.py`, without the arguments."""
    shown = [os.path.basename(words[0])] if words else []
    for word, following in zip(words[1:], [*words[2:], ""]):
        if word == "-m":
            shown.append(following)
            break
        if not word.startswith("-"):
            shown.append(os.path.basename(word))
            break
    return " ".join(shown)[:80]


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 9 else None  # noqa: PLR2004 - no world has as many


def owner(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat("/proc/%d" % pid).st_uid
    return -1


def user(pid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(owner(pid)).pw_name
    return str(owner(pid))


def _cwd(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/cwd" % pid)
    return ""


def _began(pid: int) -> float:
    """When it began, by this node's clock."""
    fields = stat(pid)
    up = float(read("/proc/uptime", 64).split()[0])
    return time.time() - (up - int(fields[BEGAN]) / TICKS) if len(fields) > BEGAN else 0.0
