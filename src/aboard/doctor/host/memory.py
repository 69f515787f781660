"""Memory: how much the node has, how much is free, and how much a control group allows ranks."""

import re
from collections.abc import Iterator

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.doctor.host import diagnoses as host
from aboard.doctor.host.leftovers import list_active_runs
from aboard.doctor.shared.answer_text import extract_file_text, extract_stdout
from aboard.doctor.shared.control_groups import read_group_files
from aboard.lazy_dataclass import dataclass

# A limit below this share of the machine is seldom intended; above it, someone shares a node on purpose.
FAR_BELOW = 0.25
LITTLE_FREE = 0.05


@dataclass(frozen=True, kw_only=True)
class MemoryCgroup:
    """One control group: its memory limit in bytes (None is no limit), and how many processes were OOM-killed."""

    path: Untrusted
    limit: int | None
    kills: int


def parse_total_memory(answer: ProbeAnswer) -> int:
    """Bytes of memory, from /proc/meminfo."""
    return _parse_kilobytes(extract_file_text(answer), "MemTotal")


def parse_available_memory(answer: ProbeAnswer) -> int:
    """Bytes available without swapping."""
    return _parse_kilobytes(extract_file_text(answer), "MemAvailable")


def parse_memory_cgroups(answer: ProbeAnswer) -> tuple[MemoryCgroup, ...]:
    """The control groups; empty where they aren't in use."""
    limits: dict[str, int | None] = {}
    kills: dict[str, int] = {}
    for line in extract_stdout(answer).splitlines():
        found = re.fullmatch(r"(/.*)/memory\.([a-z_]+):(?:oom_kill )?([0-9]{1,20}|max)", line)
        if found is None:
            raise ProbeParseError(f"unreadable control group: {escape_text(line)}")
        path, file, value = found.groups()
        if file in ("max", "limit_in_bytes"):
            limits[path] = None if value == "max" else int(value)
        elif value != "max":
            kills[path] = int(value)
    return tuple(
        MemoryCgroup(path=Untrusted(path), limit=limit, kills=kills.get(path, 0)) for path, limit in limits.items()
    )


MEMORY = Probe(name="memory", question=ProbeFiles(globs=("/proc/meminfo",)), parse=parse_total_memory)
AVAILABLE_MEMORY = Probe(
    name="available-memory", question=ProbeFiles(globs=("/proc/meminfo",)), parse=parse_available_memory
)
MEMORY_CGROUPS = Probe(
    name="control-groups",
    question=read_group_files(
        "memory", "memory.max memory.events memory.limit_in_bytes memory.oom_control", "^([0-9]+$|max$|oom_kill )"
    ),
    parse=parse_memory_cgroups,
)


def find_low_memory(facts: Facts) -> Iterator[Finding]:
    """On a node without free memory, the first rank that loads a model is killed."""
    total = facts.of(MEMORY)
    for name, available in facts.of(AVAILABLE_MEMORY).items():
        if name in total and available < LITTLE_FREE * total[name]:
            largest = max(list_active_runs(facts, name), key=lambda run: run.rss, default=None)
            own = largest is not None and largest.rss > available
            held = f"; run {largest.name}, which is active, uses {format_size(largest.rss)}" if own and largest else ""
            yield host.MEMORY.finding(
                nodes=(name,),
                seen=f"{format_size(available)} of {format_size(total[name])} memory is available{held}",
                fix=host.MEMORY.fix("run", run=largest.name) if own and largest else host.MEMORY.fix("list", node=name),
            )


def find_low_cgroup_limit(facts: Facts) -> Iterator[Finding]:
    """A control group far smaller than the machine kills ranks while the machine has free memory."""
    total = facts.of(MEMORY)
    for name, groups in facts.of(MEMORY_CGROUPS).items():
        limited = [group for group in groups if group.limit is not None and group.limit < total.get(name, 0)]
        if not limited:
            continue
        lowest = min(limited, key=lambda group: group.limit or 0)
        if (lowest.limit or 0) < FAR_BELOW * total[name]:
            yield host.MEMORY_LIMIT.finding(
                nodes=(name,),
                seen=f"ranks can use {format_size(lowest.limit or 0)} of {format_size(total[name])} memory,"
                f" limited by {lowest.path.visible()}",
                fix=host.MEMORY_LIMIT.fix(node=name),
            )
        kills = max(group.kills for group in limited)
        if kills:
            yield host.OOM_KILLS.finding(
                nodes=(name,),
                seen=f"{kills} {'process has' if kills == 1 else 'processes have'} been OOM-killed"
                f" under a memory limit of {format_size(lowest.limit or 0)}",
                fix=host.OOM_KILLS.fix(node=name),
            )


def _parse_kilobytes(text: str, word: str) -> int:
    found = re.search(rf"^{word}:\s*([0-9]{{1,18}}) kB$", text, re.MULTILINE)
    if found is None:
        raise ProbeParseError(f"no {word} in /proc/meminfo")
    return int(found[1]) * 1024


PROBES = (MEMORY, AVAILABLE_MEMORY, MEMORY_CGROUPS)
RULES = (find_low_memory, find_low_cgroup_limit)
