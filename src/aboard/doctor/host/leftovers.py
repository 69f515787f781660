"""Leftovers: processes and files of earlier runs; `aboard check --fix` removes them, by run id only."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from aboard.core.cluster.node import TransportKind
from aboard.core.cluster.node_commands import format_node_command
from aboard.core.cluster.node_sets import fold_names
from aboard.core.decoding import DecodeError, KeyedBy, Matching, MaxLength, decode
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.run.run_state import name_run
from aboard.diagnoses import Finding, Severity, format_shell
from aboard.diagnoses.nodes import unanswered_probes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.host import diagnoses as host
from aboard.lazy_dataclass import dataclass

_MAX_LISTED = 8

_MANY = MaxLength(10_000)
# It is used in commands.
Pid = Annotated[int, MaxLength(1)]
RunId = Annotated[str, Matching(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")]


@dataclass(frozen=True, kw_only=True)
class LeftoverRun:
    """Processes of a run without a supervisor, and a description of the first of them."""

    run: RunId
    pids: Annotated[tuple[Pid, ...], _MANY]
    what: Untrusted


@dataclass(frozen=True, kw_only=True)
class ActiveRun:
    """A run with a supervisor: its processes and their memory in bytes."""

    run: RunId
    pids: Annotated[tuple[Pid, ...], _MANY]
    rss: int = 0

    @property
    def name(self) -> str:
        """Its id, as `aboard stop` takes it."""
        return name_run(Untrusted(self.run))


@dataclass(frozen=True, kw_only=True)
class StrayRank:
    """A rank that another launcher started; an orphan outlived its launcher."""

    pid: Pid
    orphan: bool
    what: Untrusted


@dataclass(frozen=True, kw_only=True)
class Intruder:
    """What is at the user's place in /tmp instead of a private directory of theirs; `mode` as `ls -l` shows it."""

    path: Annotated[str, Matching(r"/tmp/aboard-\d{1,10}")]  # noqa: S108 - its name, and nothing is written there
    uid: int
    mode: Untrusted
    user: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """The leftovers of one node; `places` are runs with a directory left, `ended` counts processes just terminated."""

    runs: Annotated[tuple[LeftoverRun, ...], KeyedBy("run"), _MANY] = ()
    places: Annotated[tuple[RunId, ...], _MANY] = ()
    strays: Annotated[tuple[StrayRank, ...], _MANY] = ()
    active: Annotated[tuple[ActiveRun, ...], KeyedBy("run"), _MANY] = ()
    intruder: Intruder | None = None
    ended: int = 0


LeftoversByNode = Mapping[str, Leftovers | Unknown]


def probe_leftovers(facts: Facts) -> "Script[LeftoversByNode]":
    """One round: every node inspects its own processes."""
    replies = yield {node.name: ProbeRequest(op="leftovers") for node in facts.list_reached()}
    return {name: reply if isinstance(reply, Unknown) else parse_leftovers(reply) for name, reply in replies.items()}


def terminate_leftovers(facts: Facts) -> "Script[LeftoversByNode]":
    """Terminates the leftovers by run id, never anything else, and probes again."""
    found = _get_outcome(facts, LEFTOVERS)
    asks = {
        name: ProbeRequest(
            op="clear", fields={"runs": sorted({*(each.run for each in leftovers.runs), *leftovers.places})}
        )
        for name, leftovers in found.items()
        if isinstance(leftovers, Leftovers) and (leftovers.runs or leftovers.places)
    }
    if not asks:
        return found
    cleared = yield asks
    again = yield {name: ProbeRequest(op="leftovers") for name in asks}
    return {**found, **{name: _parse_remaining_leftovers(cleared[name], again[name]) for name in asks}}


LEFTOVERS = MultiNodeProbe(name="leftovers", script=probe_leftovers, early=True)
END_LEFTOVERS = MultiNodeProbe(name="end-leftovers", script=terminate_leftovers)


def parse_leftovers(reply: Mapping[str, Any]) -> Leftovers | Unknown:
    """Parses a node's reply; the count of terminated processes is never taken from it."""
    try:
        fields = {name: reply[name] for name in ("runs", "places", "strays")}
        more = {"intruder": reply.get("intruder"), "active": reply.get("active", {})}
        return decode(Leftovers, {**fields, **more}, strict=True)
    except (KeyError, DecodeError):
        return Unknown(why="the node sent a malformed reply")


def list_active_runs(facts: Facts, node: str) -> tuple[ActiveRun, ...]:
    """The user's runs that are active on a node, as far as the node was asked; they are no leftovers."""
    outcome = LEFTOVERS.outcome(facts)
    found = None if outcome is None or isinstance(outcome, Unknown) else outcome.get(node)
    return found.active if isinstance(found, Leftovers) else ()


def find_leftover_processes(facts: Facts) -> Iterator[Finding]:
    """Ranks of a dead run hold memory, accelerators and ports that the next one needs."""
    for name, leftovers in _list_current_leftovers(facts).items():
        for remains in leftovers.runs:
            count = len(remains.pids)
            yield host.LEFTOVERS.finding(
                nodes=(name,),
                seen=f"{count} {'process' if count == 1 else 'processes'} from run {remains.run}"
                f" {'is' if count == 1 else 'are'} running without a supervisor: {remains.what.visible()},"
                f" {_format_pids(remains.pids)}",
                about=tuple(f"pid {pid}" for pid in remains.pids),
                fix=host.LEFTOVERS.fix(node=name),
            )


def find_active_runs(facts: Facts) -> Iterator[Finding]:
    """Runs of the same user that a launch would share its nodes with; in a job, Slurm decides which jobs share them."""
    nodes: dict[str, list[str]] = {}
    for node in facts.cluster:
        if node.transport is not TransportKind.SLURM:
            for active in list_active_runs(facts, node.name):
                nodes.setdefault(active.name, []).append(node.name)
    for run, names in nodes.items():
        yield host.ACTIVE_RUN.finding(
            nodes=tuple(names),
            seen=f"run {run} is active on {fold_names(names)}",
            fix=host.ACTIVE_RUN.fix(run=run),
        )


def find_taken_places(facts: Facts) -> Iterator[Finding]:
    """Another user may make the directory that the user's runs would use."""
    for name, leftovers in _list_current_leftovers(facts).items():
        intruder = leftovers.intruder
        if intruder is not None:
            user = f"user {intruder.user.visible()}, " if intruder.user else ""
            yield host.TMP_TAKEN.finding(
                nodes=(name,),
                seen=f"{intruder.path} ({intruder.mode.visible()}) belongs to {user}uid {intruder.uid}",
                fix=host.TMP_TAKEN.fix(path=intruder.path, node=name),
            )


def find_leftover_files(facts: Facts) -> Iterator[Finding]:
    """A run directory without a supervisor only takes space, unless the run id is used again."""
    for name, leftovers in _list_current_leftovers(facts).items():
        running = {remains.run for remains in leftovers.runs}
        lying = [run for run in leftovers.places if run not in running]
        if lying:
            yield host.LEFTOVER_FILES.finding(
                nodes=(name,),
                seen=f"{len(lying)} dead {'run' if len(lying) == 1 else 'runs'} left logs in /tmp:"
                f" {', '.join(lying[:_MAX_LISTED])}",
                fix=host.LEFTOVER_FILES.fix(node=name),
            )


def find_other_ranks(facts: Facts) -> Iterator[Finding]:
    """Ranks that torchrun, deepspeed or a script started: they may be wanted, so Aboard never terminates them."""
    for name, leftovers in _list_current_leftovers(facts).items():
        for orphan, severity in ((True, Severity.WARN), (False, Severity.INFO)):
            strays = [stray for stray in leftovers.strays if stray.orphan is orphan]
            if strays:
                pids = tuple(stray.pid for stray in strays)
                state = "whose launcher has exited" if orphan else "started by another launcher"
                yield host.OTHER_RANKS.finding(
                    severity=severity,
                    nodes=(name,),
                    seen=f"{len(strays)} {'rank' if len(strays) == 1 else 'ranks'} {state}: {strays[0].what.visible()},"
                    f" {_format_pids(pids)}",
                    about=tuple(f"pid {pid}" for pid in pids),
                    fix=host.OTHER_RANKS.fix(listed=",".join(map(str, pids)), pids=list(map(str, pids)), node=name),
                )


def report_terminated_leftovers(facts: Facts) -> Iterator[Finding]:
    """Reports what `--fix` terminated."""
    for name, leftovers in _list_current_leftovers(facts).items():
        if leftovers.ended:
            yield host.LEFTOVERS_ENDED.finding(
                nodes=(name,),
                seen=f"terminated {leftovers.ended} {'process' if leftovers.ended == 1 else 'processes'}"
                " from dead runs",
            )


def find_unknown_leftovers(facts: Facts) -> Iterator[Finding]:
    """Reports nodes whose leftovers are unknown."""
    for name, leftovers in _get_outcome(
        facts, END_LEFTOVERS if END_LEFTOVERS.name in facts.outcomes else LEFTOVERS
    ).items():
        if isinstance(leftovers, Unknown):
            yield unanswered_probes.LEFTOVERS.finding(
                nodes=(name,),
                seen=f"could not check for leftovers from earlier runs: {leftovers.why}",
                fix=unanswered_probes.LEFTOVERS.fix(
                    line=format_node_command(
                        facts.cluster.node(name), format_shell("ps -u $USER -o pid,stat,etime,args")
                    )
                ),
            )


def _list_current_leftovers(facts: Facts) -> dict[str, Leftovers]:
    probe = END_LEFTOVERS if END_LEFTOVERS.name in facts.outcomes else LEFTOVERS
    return {
        name: leftovers for name, leftovers in _get_outcome(facts, probe).items() if isinstance(leftovers, Leftovers)
    }


def _get_outcome(facts: Facts, probe: "MultiNodeProbe[LeftoversByNode]") -> LeftoversByNode:
    outcome = probe.outcome(facts)
    if isinstance(outcome, Unknown):
        return {node.name: outcome for node in facts.list_reached()}
    return outcome or {}


def _parse_remaining_leftovers(
    cleared: Mapping[str, Any] | Unknown, again: Mapping[str, Any] | Unknown
) -> Leftovers | Unknown:
    leftovers = again if isinstance(again, Unknown) else parse_leftovers(again)
    if isinstance(leftovers, Unknown) or isinstance(cleared, Unknown):
        return leftovers
    count = cleared.get("ended")
    ended = count if isinstance(count, int) else 0
    return replace(leftovers, ended=ended)


def _format_pids(pids: tuple[int, ...]) -> str:
    word = "pid" if len(pids) == 1 else "pids"
    return f"{word} {', '.join(map(str, pids[:_MAX_LISTED]))}{' and more' if len(pids) > _MAX_LISTED else ''}"


PROBES = ()
RULES = (
    find_leftover_processes,
    find_active_runs,
    find_leftover_files,
    find_taken_places,
    find_other_ranks,
    report_terminated_leftovers,
    find_unknown_leftovers,
)
