"""Cores: how many a process started here may use, of how many the machine has."""

import re
from collections.abc import Iterator

from aboard.checks.answer import one_file
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Files, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.core.words import many, visible
from aboard.diagnoses import Diagnosis, Finding, Severity


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
            yield Finding(
                code="host-affinity",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"a process started there may use {_cores(allowed)} of {online[name]}",
                why="All ranks, data loaders and communication threads share what is allowed: every step is slow,"
                " and nothing says why.",
                fix=f"sudo systemctl restart ssh    # on {name}; what it starts has its cores. If that doesn't help:"
                " CPUAffinity= of ssh.service, a cpuset, or --cpus-per-task of the Slurm job",
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
    name="cores",
    title="ranks may use the cores that are there",
    probes=(CORES, ONLINE),
    rules=(narrow_affinity,),
    stories=(
        Diagnosis(
            code="host-affinity",
            title="ranks may use only a few of the machine's cores",
            severity=Severity.WARN,
            symptoms=(
                "all ranks slow, one core at 100 %",
                "Our suggested max number of worker in current system is 1",
            ),
            explanation="A process inherits the cores that it may use from whoever started it: sshd, a Slurm step, a"
            " container. Slurm gives one core for each task unless it is told more; a service file or an outer"
            " `taskset` narrows sshd and all that it starts. Ranks, data loaders and NCCL's or Gloo's threads then"
            " share that core.",
            remedy="Look at what a rank would get: `ssh NODE grep Cpus_allowed_list /proc/self/status`. In Slurm ask"
            " for `--cpus-per-task` (and pass it to srun too). For sshd look at `systemctl show ssh -p CPUAffinity`,"
            " take the line out of the service file and restart it. In a container, look at `--cpuset-cpus`.",
        ),
    ),
)
