"""Shared memory: /dev/shm, in which data loaders hand over batches and NCCL's ranks of one node talk."""

import re
from collections.abc import Iterator

from aboard.checks.answer import printed
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Command, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.core.size import GIB, MIB, size
from aboard.diagnoses import Finding, Fix, host
from aboard.lazy import dataclass

SMALL = GIB
# NCCL alone takes about 10 MiB for each pair of ranks that talk this way.
NEARLY_FULL = 128 * MIB


@dataclass(frozen=True, kw_only=True)
class Shm:
    """In bytes."""

    size: int
    free: int


def parse_df(answer: Answer) -> Shm:
    """The one line of `df -PB1` below its heading; what a file system is called may hold spaces."""
    lines = printed(answer).strip().splitlines()
    found = re.search(r"\s([0-9]{1,20})\s+([0-9]{1,20})\s+([0-9]{1,20})\s+\S+\s+/\S*$", lines[-1]) if lines else None
    if len(lines) < 2 or found is None:  # noqa: PLR2004 - a heading and a line
        raise Unparsed("df answered in a way that is not known")
    return Shm(size=int(found[1]), free=int(found[3]))


SHM = Probe(name="shm", question=Command(argv=("df", "-PB1", "/dev/shm")), parse=parse_df)  # noqa: S108 - asked about, not used


def small_shm(facts: Facts) -> Iterator[Finding]:
    """Data loaders hand over batches in /dev/shm; a full one kills them with a bus error."""
    for name, shm in facts.of(SHM).items():
        if shm.size < SMALL:
            yield _finding(name, f"shared memory (/dev/shm) holds {size(shm.size)}", host.SHM.fix("small", node=name))
        elif shm.free < NEARLY_FULL:
            seen = f"shared memory (/dev/shm) is nearly full: {size(shm.free)} of {size(shm.size)} are free"
            yield _finding(name, seen, host.SHM.fix("full", node=name))


def _finding(node: str, seen: str, fix: Fix) -> Finding:
    return host.SHM.finding(nodes=(node,), seen=seen, fix=fix)


PART = Subject(name="shm", title="shared memory is large enough", probes=(SHM,), rules=(small_shm,))
