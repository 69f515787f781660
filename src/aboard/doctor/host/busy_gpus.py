"""Busy GPUs: processes that hold GPU memory before the first rank starts."""

import re
from collections.abc import Iterator

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import CommandOutput, Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.host import diagnoses as host
from aboard.doctor.host.leftovers import list_active_runs
from aboard.doctor.shared.answer_text import NOT_INSTALLED, extract_stdout
from aboard.lazy_dataclass import dataclass

_MAX_PIDS = 8


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process on a GPU; `mib` is None where the driver doesn't report it."""

    pid: int
    mib: int | None


def parse_gpu_processes(answer: ProbeAnswer) -> tuple[GpuProcess, ...]:
    """One line each, "1234, 512 MiB"; nothing without the driver's tools."""
    if isinstance(answer, CommandOutput) and answer.code == NOT_INSTALLED:
        return ()
    holders = []
    for line in extract_stdout(answer).splitlines():
        found = re.fullmatch(
            r"\s*([0-9]{1,10})\s*,\s*(?:([0-9]{1,9}) MiB|\[?N/A\]?|\[Insufficient Permissions\])\s*", line
        )
        if found is not None:
            holders.append(GpuProcess(pid=int(found[1]), mib=int(found[2]) if found[2] else None))
        elif line.strip() and "No running" not in line:
            raise ProbeParseError(f"nvidia-smi printed an unknown format: {escape_text(line)}")
    return tuple(holders)


GPU_PROCESSES = Probe(
    name="gpu-processes",
    question=ProbeCommand(argv=("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader")),
    parse=parse_gpu_processes,
)


def find_busy_gpus(facts: Facts) -> Iterator[Finding]:
    """GPU memory held by other processes causes an out-of-memory error in the first step."""
    for name, found in facts.of(GPU_PROCESSES).items():
        holders = found
        for active in list_active_runs(facts, name):
            held = [holder for holder in holders if holder.pid in active.pids]
            holders = tuple(holder for holder in holders if holder.pid not in active.pids)
            if held:
                mib = sum(holder.mib or 0 for holder in held)
                yield host.BUSY_GPU.finding(
                    nodes=(name,),
                    seen=f"run {active.name}, which is active, holds {f'{mib} MiB of ' if mib else ''}GPU memory",
                    fix=host.BUSY_GPU.fix("run", run=active.name),
                )
        if holders:
            pids = list(dict.fromkeys(holder.pid for holder in holders))
            mib = sum(holder.mib or 0 for holder in holders)
            pids_text = ", ".join(map(str, pids[:_MAX_PIDS])) + (" and more" if len(pids) > _MAX_PIDS else "")
            yield host.BUSY_GPU.finding(
                nodes=(name,),
                seen=f"{len(pids)} {'process holds' if len(pids) == 1 else 'processes hold'}"
                f" {f'{mib} MiB of ' if mib else ''}GPU memory: {pids_text}",
                about=tuple(f"pid {pid}" for pid in pids),
                fix=host.BUSY_GPU.fix("kill", listed=",".join(map(str, pids)), pids=list(map(str, pids)), node=name),
            )


PROBES = (GPU_PROCESSES,)
RULES = (find_busy_gpus,)
