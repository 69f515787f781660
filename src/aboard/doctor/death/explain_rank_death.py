"""Explains a rank's death: from an exception, exit code or signal, and its node's state, to a diagnosis."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from aboard.core.cluster.node import TransportKind
from aboard.core.cluster.node_commands import find_component, format_node_command, format_srun_command, get_setup_lines
from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.cluster.setup_commands import strip_setup
from aboard.core.evidence.node_snapshot import DiskUsage, NodeSnapshot
from aboard.core.evidence.python_stacks import find_user_frame, parse_main_thread, parse_traceback
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.plan.plan import NodePlan
from aboard.core.run.event_kinds import RankException
from aboard.core.run.run_state import RankProcess
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import find_host_error
from aboard.diagnoses import NO_FIX, Finding, Fix, RunFailure, Shell, chain_commands, format_shell, join_fixes
from aboard.diagnoses.catalogue import read_error
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.doctor.logs.line_prefixes import parse_log_line
from aboard.doctor.logs.tracebacks import is_exception_line
from aboard.lazy_dataclass import dataclass

_SHOWN = 300
Death: TypeAlias = Finding[RunFailure]
_LAST_LINES = 3
_WARNING = re.compile(r"\bwarn(ing|ings)?\b|Warning\b", re.IGNORECASE)
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
# Module names come from ranks: only these may appear in a command.
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# Text that differs between ranks in the same message, besides their numbers and nodes. For a GPU out of memory, torch
# also lists how much each process on it uses.
_OWN = (
    (re.compile(r"/tmp/tmp\w{8}\b"), "/tmp/tmp"),  # noqa: S108 - a part of a message
    (re.compile(r"\b0x[0-9a-fA-F]+"), "0x"),
    (re.compile(r"(CUDA out of memory\.).*", re.DOTALL), r"\1"),
)
_PIECE = re.compile(r"\d+|\D+")
# Nodes are Linux, whatever the head is: signal(7).
_NAMES = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL"}
_NAMES |= {10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM"}
# Why a process gets a signal, and the variant of the fix.
_SIGNALS = {
    9: (
        "The kernel sends SIGKILL to the largest process when memory runs out; otherwise, a user or a program sent it.",
        "memory",
    ),
    7: ("A page of memory could not be allocated, usually because /dev/shm is full.", "shm"),
    11: ("Native code has a bug. Usually a wheel does not match the installed CUDA or torch.", "software"),
    6: ("Native code aborted the rank. Possible causes: NCCL's watchdog, or a failed assertion in C++.", ""),
}
_KILLED, _BUS = -9, -7
# Our trainer's own error, whose fix has the settings that need less.
_OUT_OF_MEMORY = "train-memory"
_FULL = 0.02
_SHM = "/dev/shm"  # noqa: S108 - its name, and nothing is written there


@dataclass(frozen=True, kw_only=True)
class DeathContext:
    """What a fix needs: the nodes whose ranks failed in the same way, and another that may have what they lack.

    `several` means that more than one rank did; `output` are the last lines of the first, from both streams.
    """

    parts: tuple[NodePlan, ...]
    peer: str = ""
    several: bool = False
    output: tuple[Untrusted, ...] = ()

    @property
    def where(self) -> Shell:
        return quote_folded_names(part.node.name for part in self.parts)


def explain_rank_death(process: RankProcess, tail: Sequence[Untrusted], context: DeathContext) -> Death:
    """From the surest source: that it never started, its exception, the signal, its last lines on stderr."""
    gave_up = (
        "These ranks failed in the same way, so the cause is in the script, its arguments or its data, not in one node."
        if context.several
        else "The rank's own code failed."
    )
    if process.state == "failed":
        why, fix = _match_known_error(process.why, death.NOT_STARTED, context)
        seen = f"was not started: {_format_excerpt(process.why)}"
        if lacking := death.NOT_STARTED.match_death(process.why):
            message, found = lacking
            fix = death.NOT_STARTED.fix(message.fix, node=process.node, **found.groupdict())
        return death.NOT_STARTED.finding(
            nodes=(process.node,), ranks=(process.rank,), seen=seen, why=why or None, fix=fix
        )
    if process.raised is not None:
        if ours := _explain_own_error(process, context):
            return ours
        why, fix = _match_known_error(process.raised.text, death.RAISED, context)
        seen = f"raised {_format_excerpt(process.raised.text)}{_format_place(process.raised.trace)}"
        return death.RAISED.finding(
            nodes=(process.node,), ranks=(process.rank,), seen=seen, why=why or gave_up, fix=fix
        )
    code = process.code or 0
    if code < 0:
        return _explain_signal(process, -code)
    error = find_error_line(tail)
    why, fix = _match_known_error(error, death.EXITED, context)
    if why or is_exception_line(error.raw()):
        place = _format_place(Untrusted("\n".join(parse_log_line(line.raw()).text for line in tail)))
        seen = f'exited with code {code}: "{_format_excerpt(error)}"{place}'
        return death.EXITED.finding(
            nodes=(process.node,), ranks=(process.rank,), seen=seen, why=why or gave_up, fix=fix
        )
    last = [line for line in context.output or tail if line.raw().strip()][-_LAST_LINES:]
    quoted = ", ".join(f'"{_format_excerpt(line)}"' for line in last)
    seen = f"exited with code {code}" + (
        f"; the last lines of its output: {quoted}" if last else " and printed nothing"
    )
    why = f"The rank raised no exception, and its last lines match no known error. Look for what exits with {code}:"
    return death.EXITED.finding(
        nodes=(process.node,),
        ranks=(process.rank,),
        seen=seen,
        why=f"{why} sys.exit or os._exit in the script, or a program that it runs.",
    )


def add_node_evidence(evidence: Evidence, cause: RankProcess, finding: Death) -> Death:
    """Adds what its node's snapshot explains; unchanged where nothing does."""
    node = evidence.snapshots.get(cause.node)
    if node is None:
        why = evidence.unheard.get(cause.node, "")
        # A supervisor whose ranks are all over may have ended before it was asked: nothing is missing.
        place = evidence.run.generation.connections.get(cause.node)
        why = "" if place is not None and place.ended else why
        return replace(finding, seen=f"{finding.seen}; {cause.node} could not be inspected: {why}") if why else finding
    raised = cause.raised.message if cause.raised is not None else NO_TEXT
    if death.OUT_OF_MEMORY.match_death(raised) if cause.raised is not None else cause.code == _KILLED:
        return _add_oom_kills(cause, node, finding)
    shm = next((disk for disk in node.disks if disk.path == _SHM and disk.size), None)
    if cause.code == _BUS and shm is not None and shm.free < _FULL * shm.size:
        return replace(
            finding,
            diagnosis=death.SHM_FULL,
            seen=f"{finding.seen}; /dev/shm has {format_size(shm.free)} of {format_size(shm.size)} left",
            why=death.SHM_FULL.explanation,
            fix=death.SHM_FULL.fix("remount", node=cause.node),
        )
    full = next((disk for disk in node.disks if _is_full(disk)), None)
    if full is not None and death.DISK_FULL.match_death(Untrusted(f"{raised.raw()} {finding.seen}")):
        left = "no inodes" if full.inodes < _FULL else f"{format_size(full.free)} of {format_size(full.size)}"
        return replace(
            finding,
            diagnosis=death.DISK_FULL,
            seen=f"{finding.seen}; the disk that holds {full.path.visible()} has {left} left",
            fix=death.DISK_FULL.fix("sizes", path=full.path, node=cause.node),
        )
    return finding


def name_signal(number: int) -> str:
    return _NAMES.get(number, f"signal {number}")


def find_error(process: RankProcess, tail: Sequence[Untrusted]) -> RankException | None:
    """The exception of a rank, or its exit code and last error; None if a signal killed it."""
    if process.raised is not None or process.state != "exited" or (process.code or 0) < 0:
        return process.raised
    return RankException(type=Untrusted(f"exit code {process.code}"), message=find_error_line(tail))


def find_error_line(tail: Sequence[Untrusted]) -> Untrusted:
    """The last line, unless that is a warning, which does not explain an exit.

    Only an exception with its traceback may precede warnings: torch prints some when a process group is left open.
    """
    lines = [parse_log_line(line.raw()).text for line in tail if line.raw().strip()]
    mild = [is_mild(line) for line in tail if line.raw().strip()]
    last = next((place for place in reversed(range(len(lines))) if not mild[place]), -1)
    raised = last > 0 and is_exception_line(lines[last]) and lines[last - 1].startswith(" ")
    return Untrusted(lines[last]) if last >= 0 and (raised or last == len(lines) - 1) else NO_TEXT


def is_mild(line: Untrusted) -> bool:
    """Whether a line is logged as a warning or lower."""
    parsed = parse_log_line(line.raw())
    return parsed.mild or (line.match(_WARNING) is not None and not is_exception_line(parsed.text))


def is_same_error(one: RankException, other: RankException, own: Sequence[tuple[str, str]]) -> bool:
    """Whether two ranks failed in the same way. `own` pairs their nodes, ranks and local ranks, which may differ.

    Every other number counts: errno 2 is not errno 13.
    """
    if one == other or one.type != other.type:
        return one == other
    texts = [one.message.raw(), other.message.raw()]
    for pattern, general in _OWN:
        texts = [pattern.sub(general, text) for text in texts]
    if texts[0] == texts[1]:
        return True
    names = zip(*own, strict=True)
    pieces = [_PIECE.findall(_mask_names(text, each)) for text, each in zip(texts, names, strict=True)]
    return len(pieces[0]) == len(pieces[1]) and all(
        a == b or (a.lstrip("0") or "0", b.lstrip("0") or "0") in own for a, b in zip(*pieces, strict=True)
    )


def _mask_names(text: str, names: tuple[str, ...]) -> str:
    for name in names:
        if not name.isdigit():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "<node>", text)
    return text


def _explain_own_error(process: RankProcess, context: DeathContext) -> Death | None:
    """An error of our own trainer; a user's script that raises one by that name counts as any exception."""
    starts = [start for part in context.parts if part.node.name == process.node for start in part.starts]
    is_ours = any(start.child == process.name and start.code for start in starts)
    if process.raised is None or not is_ours or (error := read_error(process.raised.error.raw())) is None:
        return None
    seen = f"could not continue: {_format_excerpt(process.raised.message)}"
    return death.RAISED.finding(
        nodes=(process.node,),
        ranks=(process.rank,),
        seen=seen,
        why=error.diagnosis.explanation
        if error.code == _OUT_OF_MEMORY
        else "The trainer stopped rather than continue with wrong results.",
        fix=error.fix,
    )


def _format_place(trace: Untrusted) -> str:
    """The first line in the user's code that a traceback leads to."""
    place = find_user_frame(parse_traceback(trace))
    return f" at {place}" if place is not None else ""


def _explain_signal(process: RankProcess, number: int) -> Death:
    name = name_signal(number)
    why, variant = _SIGNALS.get(number, ("A user or a program sent this signal to the rank.", ""))
    fix = death.KILLED.fix(variant, node=process.node) if variant else NO_FIX
    place = find_user_frame(parse_main_thread(process.stack))
    seen = f"was killed by {name}" + (f" at {place}" if place is not None else "")
    return death.KILLED.finding(nodes=(process.node,), ranks=(process.rank,), seen=seen, why=why, fix=fix)


def _match_known_error(text: Untrusted, diagnosis: RunFailure, context: DeathContext) -> tuple[str, Fix]:
    """The explanation and the fix, if the last message is known."""
    known = death.RAISED.match_death(text)
    if known is None:
        return "", NO_FIX
    message, found = known
    if message.fix == "install":
        lacks = f"{_describe_interpreters(context)} does not have this module{_describe_head_environment(context)}."
        return f"{lacks} {message.why}", _build_install_fix(diagnosis, found["module"], context)
    if message.fix == "file":
        return message.why, _build_copy_fix(diagnosis, found["path"], context)
    values = {"sockets": f"sport = :{found['port']}"} if message.fix == "port" else found.groupdict()
    return message.why, diagnosis.fix(message.fix, nodes=context.where, **values)


def _build_copy_fix(diagnosis: RunFailure, path: str, context: DeathContext) -> Fix:
    """Copies through the head, which has keys for both."""
    peer, names = context.peer, [part.node.name for part in context.parts]
    check = diagnosis.fix("file", path=path, nodes=context.where)
    if not peer or any(part.node.transport is not TransportKind.SSH for part in context.parts):
        return check
    if len(names) > 1:
        return join_fixes(check, diagnosis.fix("copy-to-all", nodes=names, peer=peer, path=path))
    return join_fixes(check, diagnosis.fix("copy", peer=peer, path=path, node=names[0]))


def _describe_interpreters(context: DeathContext) -> str:
    """The ranks' Python, with its nodes where they differ."""
    by_python: dict[str, list[str]] = {}
    for part in context.parts:
        by_python.setdefault(_find_interpreter(part), []).append(part.node.name)
    by_python.pop("", None)
    if len(by_python) == 1:
        return f"The ranks' interpreter, {next(iter(by_python))},"
    each = [f"{python} on {fold_names(names)}" for python, names in by_python.items()]
    return f"Each of the ranks' interpreters ({', '.join(each)})" if each else "The ranks' interpreter"


def _describe_head_environment(context: DeathContext) -> str:
    """How the interpreter of the ranks differs from what is active on the head."""
    lacking = {part.node.name: part.node.interpreter.lacking for part in context.parts if part.node.interpreter}
    names = [name for name, path in lacking.items() if path]
    return (
        f"; the environment that is active on the head, {lacking[names[0]]}, is not on {fold_names(names)}"
        if names
        else ""
    )


def _find_interpreter(node_plan: NodePlan) -> str:
    """argv[0] of the node's ranks, if that is a Python."""
    argv = strip_setup(node_plan.starts[0].argv) if node_plan.starts else ()
    return argv[0] if argv and argv[0].isprintable() and _PYTHON.fullmatch(argv[0].rpartition("/")[2]) else ""


def _build_install_fix(diagnosis: RunFailure, module: str, context: DeathContext) -> Fix:
    """One line for all nodes with the same interpreter, typed on the head; then how to choose another interpreter."""

    def command(node_plan: NodePlan) -> Shell:
        python = _find_interpreter(node_plan)
        # A record lacks the setup lines: without them, pip would install into another environment.
        known = node_plan.node.setup or strip_setup(node_plan.starts[0].argv) == node_plan.starts[0].argv
        install = format_shell("{python} -m pip install {module}", python=python, module=module)
        return chain_commands(*get_setup_lines(node_plan.node), install) if python and known else Shell()

    images = {start.container.image for part in context.parts for start in part.starts[:1] if start.container}
    if images:
        # What is installed into a running container is gone with it.
        return join_fixes(*(diagnosis.fix("image", module=module, image=image) for image in sorted(images)))
    fixes = []
    if _MODULE.fullmatch(module):
        parts = [part for part in context.parts if part.starts and command(part)]
        for line, same in groupby(sorted(parts, key=command), command):
            fixes += [
                diagnosis.fix("install", command=each, module=module) for each in _build_node_commands(line, same)
            ]
    return join_fixes(*fixes, diagnosis.fix("interpreter"))


def _build_node_commands(command: Shell, parts: Iterable[NodePlan]) -> Iterator[Shell]:
    """Commands for the head that run a command on these nodes: a loop, except for nodes that need ssh options."""
    # A record may come from someone else: its names go into a command only if they are valid hostnames.
    nodes = [part.node for part in parts if find_host_error(part.node.target) is None]
    plain = [node for node in nodes if node.transport is TransportKind.SSH and node.port is None]
    if len(plain) > 1:
        targets = [f"{node.user}@{node.target}" if node.user else node.target for node in plain]
        yield format_shell(
            'for node in {targets:words}; do ssh "$node" {command}; done', targets=targets, command=command
        )
    in_job = [node for node in nodes if node.transport is TransportKind.SLURM]
    for _component, same in groupby(sorted(in_job, key=find_component), find_component):
        yield format_srun_command(list(same), command)
    single = [node for node in nodes if node not in in_job and (node not in plain or len(plain) == 1)]
    yield from (format_node_command(node, command) for node in single)


def _format_excerpt(text: Untrusted) -> str:
    """The beginning of a message on one line."""
    return escape_text(" ".join(text.raw().split()), _SHOWN)


def _add_oom_kills(cause: RankProcess, node: NodeSnapshot, finding: Death) -> Death:
    before, after = node.oom_before, node.oom_kills
    lines = [line for line in node.kernel or () if "Killed process" in line or "oom-kill" in line]
    if not (before is not None and after is not None and after > before):
        return finding
    kills = after - before
    # What is used now says nothing: the process that used the memory is gone.
    limit = f"; its cgroup is limited to {format_size(node.limit)}" if node.limit else ""
    total = (
        f"; {format_size(node.free or 0)} of {format_size(node.memory)} is free"
        if node.memory and not node.limit
        else ""
    )
    kernel = f"; kernel log: {escape_text(lines[-1].raw().partition(' ')[2], 160)}" if lines else ""
    return replace(
        finding,
        diagnosis=death.OUT_OF_MEMORY,
        seen=f"{finding.seen}; the kernel has OOM-killed {'1 process' if kills == 1 else f'{kills} processes'}"
        f" since the start{limit}{total}{kernel}",
        why=death.OUT_OF_MEMORY.explanation,
        fix=death.OUT_OF_MEMORY.fix("killed", node=cause.node),
    )


def _is_full(disk: DiskUsage) -> bool:
    return bool(disk.size) and (disk.free < _FULL * disk.size or disk.inodes < _FULL)
