"""Resource limits, as a launched rank will have them: not those of a login, and not those of the administrator."""

import re
from collections.abc import Iterator

from aboard.checks.answer import one_file
from aboard.checks.reach.shell import SHELL, Ready, setup_line
from aboard.core.facts import Facts, Unknown
from aboard.core.probe import Answer, Contents, Files, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.diagnoses import Diagnosis, Finding, Severity
from aboard.lazy import dataclass

FEW_FILES = 4096
FEW_PROCESSES = 4096


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a process has (soft), and how far it may raise that itself (hard); None is no limit."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Open files and processes are counts, locked memory is bytes."""

    files: Limit
    processes: Limit
    locked: Limit


def parse_limits(answer: Answer) -> Limits:
    """The table of /proc/self/limits."""
    text = one_file(answer)
    return Limits(
        files=_limit(text, "Max open files"),
        processes=_limit(text, "Max processes"),
        locked=_limit(text, "Max locked memory"),
    )


# Read by a child of the agent, which starts ranks too: limits pass from parent to child (getrlimit(2)).
LIMITS = Probe(name="limits", question=Files(globs=("/proc/self/limits",)), parse=parse_limits)


def limits_of(facts: Facts) -> dict[str, Limits]:
    """By node, after its `setup` lines where it has some: `ulimit` is a line like any other."""
    found = facts.of(LIMITS)
    shells = facts.outcome(SHELL)
    for name, shell in {} if shells is None or isinstance(shells, Unknown) else shells.items():
        if isinstance(shell, Ready) and shell.limits:
            try:
                found[name] = parse_limits(Contents(files={"/proc/self/limits": shell.limits}))
            except Unparsed:
                continue
    return found


def few_files(facts: Facts) -> Iterator[Finding]:
    """Each data loader worker, peer and shard is an open file."""
    for name, limits in limits_of(facts).items():
        soft, hard = limits.files.soft, limits.files.hard
        if soft is not None and soft < FEW_FILES:
            may = hard is None or hard >= FEW_FILES
            wanted = 65536 if hard is None else min(hard, 65536)
            yield Finding(
                code="host-open-files",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"a rank may have {soft} open files"
                + (f", and raise that to {hard or 'any number'}" if may else ""),
                why="Every peer, data loader worker, tensor on its way and shard is an open file; past the limit a rank"
                " dies with `Too many open files`.",
                fix=_line(facts, name, f"ulimit -n {wanted}") if may else _raise(name, "nofile"),
            )


def few_processes(facts: Facts) -> Iterator[Finding]:
    """Threads count as processes, and a rank has dozens."""
    for name, limits in limits_of(facts).items():
        soft, hard = limits.processes.soft, limits.processes.hard
        if soft is not None and soft < FEW_PROCESSES:
            may = hard is None or hard >= FEW_PROCESSES
            yield Finding(
                code="host-processes",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"the user may have {soft} processes and threads",
                why="Each rank has dozens of threads, and so has each data loader worker; past the limit none can be"
                " started.",
                fix=_line(facts, name, f"ulimit -u {hard or 'unlimited'}") if may else _raise(name, "nproc"),
            )


def _line(facts: Facts, name: str, line: str) -> str:
    return f"{setup_line([*facts.cluster.node(name).setup, line])}    # in aboard.yaml, for {name}"


def _raise(name: str, item: str) -> str:
    value = {"nofile": "1048576"}.get(item, "unlimited")
    return (
        f"echo '* - {item} {value}' | sudo tee /etc/security/limits.d/90-{item}.conf    # on {name}; for new logins\n"
        f"sudo systemctl restart ssh    # on {name}; if sshd itself was started with the low limit"
    )


def _limit(text: str, title: str) -> Limit:
    found = re.search(rf"^{title}\s+([0-9]{{1,20}}|unlimited)\s+([0-9]{{1,20}}|unlimited)(?:\s|$)", text, re.MULTILINE)
    if found is None:
        raise Unparsed(f"no `{title}` in /proc/self/limits")
    soft, hard = (None if word == "unlimited" else int(word) for word in found.groups())
    return Limit(soft=soft, hard=hard)


PART = Subject(
    name="limits",
    title="ranks may start and open what they need",
    probes=(LIMITS,),
    rules=(few_files, few_processes),
    stories=(
        Diagnosis(
            code="host-open-files",
            title="a rank may open too few files",
            severity=Severity.WARN,
            symptoms=("OSError: [Errno 24] Too many open files", "RuntimeError: received 0 items of ancdata"),
            explanation="A process inherits its limits from sshd, slurmd or the container, and they are often 1024"
            " open files where ranks need thousands: data loaders pass each tensor as an open file, and each peer is a"
            " socket. What `ulimit -n` says in your terminal may be another figure than the one that ranks get.",
            remedy="Add `setup: [ulimit -n 65536]` in aboard.yaml where the hard limit allows it. Else raise it:"
            " `echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/90-nofile.conf`, and restart sshd, or"
            " `LimitNOFILE=` in slurmd's service file, or `--ulimit nofile=1048576` for Docker. In the program,"
            " `torch.multiprocessing.set_sharing_strategy('file_system')` needs fewer.",
        ),
        Diagnosis(
            code="host-processes",
            title="the user may start too few processes",
            severity=Severity.WARN,
            symptoms=(
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64",
                "RuntimeError: can't start new thread",
            ),
            explanation="The limit counts all processes and threads of the user on that machine, those of other runs"
            " too. Each rank starts a thread for each core for its math, and more for communication and data.",
            remedy="`echo '* - nproc unlimited' | sudo tee /etc/security/limits.d/90-nproc.conf` and log in anew; in"
            " Docker `--pids-limit -1`. Fewer threads help as well: `env: {OMP_NUM_THREADS: 8}` in aboard.yaml.",
        ),
    ),
)
