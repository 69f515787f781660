"""Resource limits as a launched rank will have them, which are not those of a login or of the administrator."""

import re
from collections.abc import Iterator

from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.probe import FileContents, Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.diagnoses import Finding
from aboard.doctor.host import diagnoses as host
from aboard.doctor.reach.rank_shell import SHELL, ShellReady, format_yaml_list
from aboard.doctor.shared.answer_text import extract_file_text
from aboard.lazy_dataclass import dataclass

FEW_FILES = 4096
FEW_PROCESSES = 4096


@dataclass(frozen=True, kw_only=True)
class ResourceLimit:
    """A process's limit (soft), and how far it may raise it (hard); None is no limit."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, kw_only=True)
class ResourceLimits:
    """Open files and processes are counts, locked memory is bytes."""

    files: ResourceLimit
    processes: ResourceLimit
    locked: ResourceLimit


def parse_limits(answer: ProbeAnswer) -> ResourceLimits:
    """The table of /proc/self/limits."""
    text = extract_file_text(answer)
    return ResourceLimits(
        files=_parse_limit(text, "Max open files"),
        processes=_parse_limit(text, "Max processes"),
        locked=_parse_limit(text, "Max locked memory"),
    )


# Read by a child of the agent, which starts ranks too: limits pass from parent to child (getrlimit(2)).
LIMITS = Probe(name="limits", question=ProbeFiles(globs=("/proc/self/limits",)), parse=parse_limits)


def collect_limits(facts: Facts) -> dict[str, ResourceLimits]:
    """The limits by node, after its `setup` lines if any, since a line may call `ulimit`."""
    found = facts.of(LIMITS)
    shells = SHELL.outcome(facts)
    for name, shell in {} if shells is None or isinstance(shells, Unknown) else shells.items():
        if isinstance(shell, ShellReady) and shell.limits:
            try:
                found[name] = parse_limits(FileContents(files={"/proc/self/limits": shell.limits.raw()}))
            except ProbeParseError:
                continue
    return found


def find_low_file_limit(facts: Facts) -> Iterator[Finding]:
    """Each data loader worker, peer and shard takes an open file."""
    for name, limits in collect_limits(facts).items():
        soft, hard = limits.files.soft, limits.files.hard
        if soft is not None and soft < FEW_FILES:
            may = hard is None or hard >= FEW_FILES
            wanted = 65536 if hard is None else min(hard, 65536)
            yield host.OPEN_FILES.finding(
                nodes=(name,),
                seen=f"a rank can open {soft} files"
                + (f", and can raise that limit to {hard or 'any number'}" if may else ""),
                fix=host.OPEN_FILES.fix(
                    "setup", lines=_append_setup_line(facts, name, f"ulimit -n {wanted}"), node=name
                )
                if may
                else host.OPEN_FILES.fix("raise", node=name),
            )


def find_low_process_limit(facts: Facts) -> Iterator[Finding]:
    """Threads count as processes, and a rank has dozens."""
    for name, limits in collect_limits(facts).items():
        soft, hard = limits.processes.soft, limits.processes.hard
        if soft is not None and soft < FEW_PROCESSES:
            may = hard is None or hard >= FEW_PROCESSES
            yield host.PROCESSES.finding(
                nodes=(name,),
                seen=f"the user is limited to {soft} processes and threads",
                fix=host.PROCESSES.fix(
                    "setup", lines=_append_setup_line(facts, name, f"ulimit -u {hard or 'unlimited'}"), node=name
                )
                if may
                else host.PROCESSES.fix("raise", node=name),
            )


def _append_setup_line(facts: Facts, name: str, line: str) -> str:
    """The node's `setup` lines and this one."""
    return format_yaml_list([*facts.cluster.node(name).setup, line])


def _parse_limit(text: str, title: str) -> ResourceLimit:
    found = re.search(rf"^{title}\s+([0-9]{{1,20}}|unlimited)\s+([0-9]{{1,20}}|unlimited)(?:\s|$)", text, re.MULTILINE)
    if found is None:
        raise ProbeParseError(f"no `{title}` in /proc/self/limits")
    soft, hard = (None if word == "unlimited" else int(word) for word in found.groups())
    return ResourceLimit(soft=soft, hard=hard)


PROBES = (LIMITS,)
RULES = (find_low_file_limit, find_low_process_limit)
