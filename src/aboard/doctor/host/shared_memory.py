"""Shared memory: /dev/shm, which data loaders use for batches and NCCL for ranks of one node."""

import re
from collections.abc import Iterator

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.core.text.byte_sizes import GIB, MIB, format_size
from aboard.diagnoses import Finding
from aboard.doctor.host import diagnoses as host
from aboard.doctor.shared.answer_text import extract_stdout
from aboard.lazy_dataclass import dataclass

SMALL = GIB
# NCCL alone takes about 10 MiB for each pair of ranks that communicate this way.
NEARLY_FULL = 128 * MIB


@dataclass(frozen=True, kw_only=True)
class ShmSpace:
    """In bytes."""

    size: int
    free: int


def parse_shm_space(answer: ProbeAnswer) -> ShmSpace:
    """The line of `df -PB1` below its heading; a file system's name may contain spaces."""
    lines = extract_stdout(answer).strip().splitlines()
    found = re.search(r"\s([0-9]{1,20})\s+([0-9]{1,20})\s+([0-9]{1,20})\s+\S+\s+/\S*$", lines[-1]) if lines else None
    if len(lines) < 2 or found is None:  # noqa: PLR2004 - a heading and a line
        raise ProbeParseError("df printed an unknown format")
    return ShmSpace(size=int(found[1]), free=int(found[3]))


SHM = Probe(name="shm", question=ProbeCommand(argv=("df", "-PB1", "/dev/shm")), parse=parse_shm_space)  # noqa: S108 - asked about, not used


def find_small_shm(facts: Facts) -> Iterator[Finding]:
    """Data loaders pass batches through /dev/shm; when it is full, a bus error kills them."""
    for name, shm in facts.of(SHM).items():
        if shm.size < SMALL or shm.free < NEARLY_FULL:
            small, size = shm.size < SMALL, format_size(shm.size)
            state = f"only {size}" if small else f"nearly full: {format_size(shm.free)} of {size} is free"
            yield host.SHM.finding(
                nodes=(name,),
                seen=f"shared memory (/dev/shm) is {state}",
                fix=host.SHM.fix("small", node=name) if small else host.SHM.fix("full", node=name),
            )


PROBES = (SHM,)
RULES = (find_small_shm,)
