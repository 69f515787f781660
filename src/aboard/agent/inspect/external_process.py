"""One process of an external job, described by its environment and command line.

Both may contain secrets and stay on the node: only its rank numbers, its rendezvous address, its directory and its
script's name leave it.
"""

from __future__ import annotations

import os
import time

from aboard.agent import process_tree, procfs
from aboard.agent.inspect import launcher_detection

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Variables with rank and world size: torchrun and compatible launchers, Slurm, Open MPI.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
# Its Slurm step: such ranks may get their rendezvous address in other ways than by their environment.
JOB, STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
# With it, torchrun's own process runs the store, and rank 0 is a client like all others.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
VARIABLES = {ADDRESS, PORT, AGENT_STORE, JOB, STEP, process_tree.RUN_ID, *launcher_detection.VARIABLES}
VARIABLES.update(*RANK_VARIABLES)
MAPS_LIMIT = 16 * 1024 * 1024
LONGEST = 255


class ExternalProcess:
    """One process, by its environment and its command line."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.env = parse_environment(procfs.read_environ(pid))
        self.argv = procfs.read_command_line(pid)
        self.launcher = launcher_detection.detect_launcher(self.argv)
        self.numbers = parse_rank_and_world(self.env)

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.numbers, self.env.get(ADDRESS), self.env.get(PORT)

    @property
    def python(self) -> bool:
        return os.path.basename(procfs.read_link("/proc/%d/exe" % self.pid)).startswith(("python", "pypy"))

    @property
    def torch(self) -> bool:
        return b"/libtorch" in procfs.read_kernel_file("/proc/%d/maps" % self.pid, MAPS_LIMIT)

    def describe(self) -> dict[str, Any]:
        rank, world = self.numbers if self.numbers is not None else (None, None)
        description: dict[str, Any] = {
            "pid": self.pid,
            "rank": rank,
            "world": world,
            "address": self.env.get(ADDRESS, ""),
            "port": _parse_count(self.env.get(PORT, "")),
            "job": "%s.%s" % (self.env[JOB], self.env[STEP]) if JOB in self.env and STEP in self.env else "",
            "torch": self.torch,
            "hosts": rank == 0 and self.env.get(AGENT_STORE) != "True",
        }
        if self.launcher:
            rendezvous = launcher_detection.parse_rendezvous(self.argv, self.env)
            description.update(
                rank=_parse_count(rendezvous.get("number", "")),
                world=_parse_count(rendezvous["nodes"]),
                address=rendezvous["address"][:LONGEST],
            )
            description.update(
                port=_parse_count(rendezvous["port"]), hosts=description["rank"] == 0, launcher=self.launcher
            )
        description.update(
            cwd=procfs.read_link("/proc/%d/cwd" % self.pid),
            began=_read_start_time(self.pid),
            user=procfs.resolve_user(procfs.read_owner(self.pid)),
            what=describe_command(self.argv),
        )
        return description


def parse_environment(raw: bytes) -> dict[str, str]:
    """Only the variables that identify the rank and its world."""
    pairs = ((name.decode("ascii", "replace"), value) for name, value in procfs.parse_environ(raw).items())
    return {word: value.decode("ascii", "replace")[:LONGEST] for word, value in pairs if word in VARIABLES}


def parse_rank_and_world(env: dict[str, str]) -> tuple[int, int] | None:
    """Its rank and world size, from the first launcher whose variables it has."""
    for rank, world in RANK_VARIABLES:
        one, all_ = _parse_count(env.get(rank, "")), _parse_count(env.get(world, ""))
        if one is not None and all_ is not None and one < all_:
            return one, all_
    return None


def describe_command(words: Sequence[str]) -> str:
    """The program and its script or module, as in `python train.py`, without the arguments."""
    parts = [os.path.basename(words[0])] if words else []
    for word, following in zip(words[1:], [*words[2:], ""]):
        if word == "-m":
            parts.append(following)
            break
        if not word.startswith("-"):
            parts.append(os.path.basename(word))
            break
    return " ".join(parts)[:80]


def _parse_count(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 9 else None  # noqa: PLR2004 - longer than any world size


def _read_start_time(pid: int) -> float:
    """When it started, by this node's clock."""
    fields = procfs.read_stat(pid)
    up = float(procfs.read_kernel_file("/proc/uptime", 64).split()[0])
    return time.time() - (up - int(fields[procfs.START_TIME]) / procfs.TICKS) if fields else 0.0
