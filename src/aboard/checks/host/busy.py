"""Busy accelerators: who holds GPU memory before our first rank has started."""

import re
from collections.abc import Iterator

from aboard.checks.answer import printed
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Command, Output, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.core.words import visible
from aboard.diagnoses import Finding, host
from aboard.lazy import dataclass

NOT_INSTALLED = 127
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process on a GPU; `mib` is None where the driver doesn't say."""

    pid: int
    mib: int | None


def parse_holders(answer: Answer) -> tuple[Holder, ...]:
    """One line each, "1234, 512 MiB"; nothing without the driver's tools."""
    if isinstance(answer, Output) and answer.code == NOT_INSTALLED:
        return ()
    holders = []
    for line in printed(answer).splitlines():
        found = re.fullmatch(
            r"\s*([0-9]{1,10})\s*,\s*(?:([0-9]{1,9}) MiB|\[?N/A\]?|\[Insufficient Permissions\])\s*", line
        )
        if found is not None:
            holders.append(Holder(pid=int(found[1]), mib=int(found[2]) if found[2] else None))
        elif line.strip() and "No running" not in line:
            raise Unparsed(f"nvidia-smi answered in a way that is not known: {visible(line)}")
    return tuple(holders)


HOLDERS = Probe(
    name="gpu-processes",
    question=Command(argv=("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader")),
    parse=parse_holders,
)


def busy_accelerators(facts: Facts) -> Iterator[Finding]:
    """GPU memory that someone else holds is an out-of-memory error in the first step."""
    for name, holders in facts.of(HOLDERS).items():
        if holders:
            pids = list(dict.fromkeys(holder.pid for holder in holders))
            mib = sum(holder.mib or 0 for holder in holders)
            shown = ", ".join(map(str, pids[:_SHOWN])) + (" and more" if len(pids) > _SHOWN else "")
            yield host.BUSY_GPU.finding(
                nodes=(name,),
                seen=f"{len(pids)} {'process holds' if len(pids) == 1 else 'processes hold'}"
                f" {f'{mib} MiB of ' if mib else ''}GPU memory: {shown}",
                about=tuple(f"pid {pid}" for pid in pids),
                fix=host.BUSY_GPU.fix(listed=",".join(map(str, pids)), pids=list(map(str, pids)), node=name),
            )


PART = Subject(name="busy", title="accelerators are free", probes=(HOLDERS,), rules=(busy_accelerators,))
