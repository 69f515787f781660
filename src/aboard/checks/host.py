"""Host basics: what each node is (kernel, cores, memory, accelerators) and whether its clock agrees."""

import re
from collections.abc import Iterator

from aboard.core.facts import Facts
from aboard.core.finding import Finding, Severity
from aboard.core.probe import Answer, Contents, Files, Probe, Unparsed
from aboard.core.reach import Reached
from aboard.core.rule import Subject
from aboard.core.words import visible

# torchrun's c10d rendezvous takes a peer whose clock is 15 s off for dead, and then runs with a smaller world.
CLOCK_BLOCK_SECONDS = 10.0
CLOCK_WARN_SECONDS = 1.0


def _one_file(answer: Answer) -> str:
    if isinstance(answer, Contents) and len(answer.files) == 1:
        return next(iter(answer.files.values()))
    raise Unparsed("the file is not there or can't be read")


def parse_kernel(answer: Answer) -> str:
    release = _one_file(answer).strip()
    if not release:
        raise Unparsed("an empty kernel release")
    return visible(release)


def parse_cores(answer: Answer) -> int:
    """Counts the cores that a process started here may use, e.g. "0-3,8": fewer than the machine may have."""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", _one_file(answer), re.MULTILINE)
    if allowed is None:
        raise Unparsed("no Cpus_allowed_list in /proc/self/status")
    count = 0
    for part in allowed[1].split(","):
        span = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if last < first:
            raise Unparsed(f"a list of cores that can't be read: {visible(allowed[1])}")
        count += last - first + 1
    return count


def parse_memory(answer: Answer) -> int:
    """Bytes of memory, from /proc/meminfo."""
    total = re.search(r"^MemTotal:\s*([0-9]{1,18}) kB$", _one_file(answer), re.MULTILINE)
    if total is None:
        raise Unparsed("no MemTotal in /proc/meminfo")
    return int(total[1]) * 1024


def parse_accelerators(answer: Answer) -> tuple[str, ...]:
    """The models of the NVIDIA GPUs that the driver sees, one each; none without a driver."""
    if not isinstance(answer, Contents):
        raise Unparsed("not a list of files")
    found = []
    for _path, text in sorted(answer.files.items()):
        model = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
        found.append(visible(model[1].strip()) if model else "unknown model")
    return tuple(found)


KERNEL = Probe(name="kernel", question=Files(globs=("/proc/sys/kernel/osrelease",)), parse=parse_kernel)
CORES = Probe(name="cores", question=Files(globs=("/proc/self/status",)), parse=parse_cores)
MEMORY = Probe(name="memory", question=Files(globs=("/proc/meminfo",)), parse=parse_memory)
ACCELERATORS = Probe(
    name="accelerators",
    question=Files(globs=("/proc/driver/nvidia/gpus/*/information",)),
    parse=parse_accelerators,
)


def clock_offset(facts: Facts) -> Iterator[Finding]:
    """Clocks that disagree break rendezvous and munge, and put events in the wrong order."""
    for name, contact in facts.contacts.items():
        if not isinstance(contact, Reached):
            continue
        # What the round trip can't tell apart is not held against the clock.
        surely = max(0.0, abs(contact.clock_offset) - contact.round_trip / 2)
        if surely >= CLOCK_WARN_SECONDS:
            side = "ahead of" if contact.clock_offset > 0 else "behind"
            yield Finding(
                code="host-clock",
                severity=Severity.BLOCK if surely >= CLOCK_BLOCK_SECONDS else Severity.WARN,
                nodes=(name,),
                seen=f"its clock is {abs(contact.clock_offset):.1f} s {side} this machine's",
                why="torchrun takes a peer that is 15 s off for dead, Slurm's munge refuses its credentials,"
                " and logs can't be put in order.",
                fix=f"sudo systemctl restart chrony || sudo systemctl restart systemd-timesyncd    # on {name}",
            )


def unknown_facts(facts: Facts) -> Iterator[Finding]:
    """A question without an answer is said, never passed over."""
    for probe in PROBES:
        for name, unknown in facts.unknown(probe).items():
            yield Finding(
                code=f"unknown-{probe.name}",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"{probe.name} stayed unknown: {unknown.why}",
                why="What can't be asked can't be vouched for.",
                fix=f"ssh {facts.cluster.node(name).target} cat {_first_glob(probe.question)}",
            )


def _first_glob(question: object) -> str:
    return question.globs[0] if isinstance(question, Files) else ""


PROBES = (KERNEL, CORES, MEMORY, ACCELERATORS)

SUBJECT = Subject(
    name="host",
    title="every host that answers is known",
    probes=PROBES,
    rules=(clock_offset, unknown_facts),
)
