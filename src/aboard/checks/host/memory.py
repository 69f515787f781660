"""Memory: how much there is, how much of it is free, and how much a control group lets ranks have."""

import re
from collections.abc import Iterator

from aboard.checks.answer import one_file, printed
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Command, Files, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.core.size import size
from aboard.core.words import visible
from aboard.diagnoses import Finding, host
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

# A limit below this part of the machine is seldom meant; above it, someone shares a node on purpose.
FAR_BELOW = 0.25
LITTLE_FREE = 0.05

# All groups that hold us, from our own up to the root: the lowest limit counts. Version 1 has a tree for memory alone,
# version 2 one for all; in a container the path may be the outer one, of which only the root is there.
_GROUPS = """
set --
while IFS=: read -r number kinds path; do
    case ",$kinds," in
        *,memory,*) base=/sys/fs/cgroup/memory ;;
        ,,) base=/sys/fs/cgroup ;;
        *) continue ;;
    esac
    case $path in */..*) path= ;; esac
    path=${path%/}
    while :; do
        for file in memory.max memory.events memory.limit_in_bytes memory.oom_control; do
            set -- "$@" "$base$path/$file"
        done
        [ -n "$path" ] || break
        path=${path%/*}
    done
done < /proc/self/cgroup
grep -Hs -e '^[0-9][0-9]*$' -e '^max$' -e '^oom_kill ' "$@"
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class Group:
    """One control group: bytes that its processes may have (None is no limit), and how many were killed for more."""

    path: Untrusted
    limit: int | None
    kills: int


def parse_memory(answer: Answer) -> int:
    """Bytes of memory, from /proc/meminfo."""
    return _kilobytes(one_file(answer), "MemTotal")


def parse_available(answer: Answer) -> int:
    """Bytes that could be had without swapping."""
    return _kilobytes(one_file(answer), "MemAvailable")


def parse_groups(answer: Answer) -> tuple[Group, ...]:
    """None at all where control groups aren't in use."""
    limits: dict[str, int | None] = {}
    kills: dict[str, int] = {}
    for line in printed(answer).splitlines():
        found = re.fullmatch(r"(/.*)/memory\.([a-z_]+):(?:oom_kill )?([0-9]{1,20}|max)", line)
        if found is None:
            raise Unparsed(f"a control group that can't be read: {visible(line)}")
        path, file, value = found.groups()
        if file in ("max", "limit_in_bytes"):
            limits[path] = None if value == "max" else int(value)
        elif value != "max":
            kills[path] = int(value)
    return tuple(Group(path=Untrusted(path), limit=limit, kills=kills.get(path, 0)) for path, limit in limits.items())


MEMORY = Probe(name="memory", question=Files(globs=("/proc/meminfo",)), parse=parse_memory)
AVAILABLE = Probe(name="available-memory", question=Files(globs=("/proc/meminfo",)), parse=parse_available)
GROUPS = Probe(name="control-groups", question=Command(argv=("sh", "-c", _GROUPS)), parse=parse_groups)


def little_memory(facts: Facts) -> Iterator[Finding]:
    """A node whose memory is taken kills the first rank that loads a model."""
    total = facts.of(MEMORY)
    for name, available in facts.of(AVAILABLE).items():
        if name in total and available < LITTLE_FREE * total[name]:
            yield host.MEMORY.finding(
                nodes=(name,),
                seen=f"{size(available)} of {size(total[name])} memory can be had",
                fix=host.MEMORY.fix(node=name),
            )


def low_limit(facts: Facts) -> Iterator[Finding]:
    """A control group far smaller than the machine kills ranks while the machine looks empty."""
    total = facts.of(MEMORY)
    for name, groups in facts.of(GROUPS).items():
        limited = [group for group in groups if group.limit is not None and group.limit < total.get(name, 0)]
        if not limited:
            continue
        lowest = min(limited, key=lambda group: group.limit or 0)
        if (lowest.limit or 0) < FAR_BELOW * total[name]:
            yield host.MEMORY_LIMIT.finding(
                nodes=(name,),
                seen=f"ranks may have {size(lowest.limit or 0)} of {size(total[name])} memory,"
                f" by {lowest.path.visible()}",
                fix=host.MEMORY_LIMIT.fix(node=name),
            )
        kills = max(group.kills for group in limited)
        if kills:
            yield host.OOM_KILLS.finding(
                nodes=(name,),
                seen=f"{kills} {'process was' if kills == 1 else 'processes were'} killed there for want of memory,"
                f" within a limit of {size(lowest.limit or 0)}",
                fix=host.OOM_KILLS.fix(node=name),
            )


def _kilobytes(text: str, word: str) -> int:
    found = re.search(rf"^{word}:\s*([0-9]{{1,18}}) kB$", text, re.MULTILINE)
    if found is None:
        raise Unparsed(f"no {word} in /proc/meminfo")
    return int(found[1]) * 1024


PART = Subject(
    name="memory",
    title="ranks may have the machine's memory",
    probes=(MEMORY, AVAILABLE, GROUPS),
    rules=(little_memory, low_limit),
)
