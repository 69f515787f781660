"""Cores: how many a process started here may use, of how many the machine has."""

import re
from collections.abc import Iterator

from aboard.checks.answer import one_file
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Files, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.core.words import many, visible
from aboard.diagnoses import Finding, host


def parse_cores(answer: Answer) -> int:
    """Counts the cores that a process started here may use, e.g. "0-3,8": fewer than the machine may have."""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", one_file(answer), re.MULTILINE)
    if allowed is None:
        raise Unparsed("no Cpus_allowed_list in /proc/self/status")
    return _count(allowed[1])


def parse_online(answer: Answer) -> int:
    """Counts the cores that the machine has, from the same kind of list."""
    return _count(one_file(answer).strip())


CORES = Probe(name="cores", question=Files(globs=("/proc/self/status",)), parse=parse_cores)
ONLINE = Probe(name="online-cores", question=Files(globs=("/sys/devices/system/cpu/online",)), parse=parse_online)


def narrow_affinity(facts: Facts) -> Iterator[Finding]:
    """Ranks that share one core, or have fewer cores than there are ranks, are slow without a word of error."""
    online = facts.of(ONLINE)
    for name, allowed in facts.of(CORES).items():
        ranks = facts.cluster.node(name).slots or 1
        if allowed < online.get(name, 0) and allowed < max(2, ranks):
            yield host.AFFINITY.finding(
                nodes=(name,),
                seen=f"a process started there may use {_cores(allowed)} of {online[name]}",
                fix=host.AFFINITY.fix(node=name),
            )


def _cores(count: int) -> str:
    return many(count, "core")


def _count(listed: str) -> int:
    count = 0
    for part in listed.split(","):
        span = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if last < first:
            raise Unparsed(f"a list of cores that can't be read: {visible(listed)}")
        count += last - first + 1
    return count


PART = Subject(
    name="cores", title="ranks may use the cores that are there", probes=(CORES, ONLINE), rules=(narrow_affinity,)
)
