"""Leftovers: what earlier runs left running or lying on a node; `aboard check --fix` ends it, by run id only."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from aboard.core.decoding import DecodeError, Keyed, Limit, Matching, decode
from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity, host, unknown
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

_SHOWN = 8

_MANY = Limit(10_000)
# It goes into commands.
Pid = Annotated[int, Limit(1)]
RunId = Annotated[str, Matching(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")]


@dataclass(frozen=True, kw_only=True)
class Remains:
    """Processes of a run that nobody keeps any more, and what the first of them is."""

    run: RunId
    pids: Annotated[tuple[Pid, ...], _MANY]
    what: Untrusted


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A rank that another launcher started; an orphan has outlived it."""

    pid: Pid
    orphan: bool
    what: Untrusted


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What one node has; `places` are runs of which a directory is left, `ended` counts what was just ended there."""

    runs: Annotated[tuple[Remains, ...], Keyed("run"), _MANY] = ()
    places: Annotated[tuple[RunId, ...], _MANY] = ()
    strays: Annotated[tuple[Stray, ...], _MANY] = ()
    ended: int = 0


Found = Mapping[str, Leftovers | Unknown]


def look(facts: Facts) -> "Script[Found]":
    """One round: every node looks at its own processes."""
    replies = yield {node.name: Ask(op="leftovers") for node in facts.reached()}
    return {name: reply if isinstance(reply, Unknown) else parse_leftovers(reply) for name, reply in replies.items()}


def end(facts: Facts) -> "Script[Found]":
    """Ends what was found by its run id, never anything else, and looks again."""
    found = _found(facts, LEFTOVERS)
    asks = {
        name: Ask(op="clear", fields={"runs": sorted({*(each.run for each in left.runs), *left.places})})
        for name, left in found.items()
        if isinstance(left, Leftovers) and (left.runs or left.places)
    }
    if not asks:
        return found
    cleared = yield asks
    again = yield {name: Ask(op="leftovers") for name in asks}
    return {**found, **{name: _after(cleared[name], again[name]) for name in asks}}


LEFTOVERS = Exercise(name="leftovers", script=look, early=True)
END_LEFTOVERS = Exercise(name="end-leftovers", script=end)


def parse_leftovers(reply: Mapping[str, Any]) -> Leftovers | Unknown:
    """What a node said, as values; what was ended there is not for it to say."""
    try:
        told = {name: reply[name] for name in ("runs", "places", "strays")}
        return decode(Leftovers, told, strict=True)
    except (KeyError, DecodeError):
        return Unknown(why="an answer that is none")


def left_running(facts: Facts) -> Iterator[Finding]:
    """Ranks of a dead run hold memory, accelerators and ports that the next one needs."""
    for name, left in _now(facts).items():
        for remains in left.runs:
            count = len(remains.pids)
            yield host.LEFTOVERS.finding(
                nodes=(name,),
                seen=f"{count} {'process' if count == 1 else 'processes'} of run {remains.run} without a keeper:"
                f" {remains.what.visible()}, {_listed(remains.pids)}",
                about=tuple(f"pid {pid}" for pid in remains.pids),
                fix=host.LEFTOVERS.fix(node=name),
            )


def left_lying(facts: Facts) -> Iterator[Finding]:
    """A directory without a keeper takes space and nothing else, unless the run id is used again."""
    for name, left in _now(facts).items():
        running = {remains.run for remains in left.runs}
        lying = [run for run in left.places if run not in running]
        if lying:
            yield host.LEFTOVER_FILES.finding(
                nodes=(name,),
                seen=f"logs of {len(lying)} dead {'run' if len(lying) == 1 else 'runs'} in /tmp:"
                f" {', '.join(lying[:_SHOWN])}",
                fix=host.LEFTOVER_FILES.fix(node=name),
            )


def other_ranks(facts: Facts) -> Iterator[Finding]:
    """Ranks that torchrun, deepspeed or a script started: perhaps yours and wanted, so never ended by us."""
    for name, left in _now(facts).items():
        for orphan, severity in ((True, Severity.WARN), (False, Severity.INFO)):
            strays = [stray for stray in left.strays if stray.orphan is orphan]
            if strays:
                pids = tuple(stray.pid for stray in strays)
                state = "whose launcher is gone" if orphan else "of another launcher"
                yield host.OTHER_RANKS.finding(
                    severity=severity,
                    nodes=(name,),
                    seen=f"{len(strays)} {'rank' if len(strays) == 1 else 'ranks'} {state}: {strays[0].what.visible()},"
                    f" {_listed(pids)}",
                    about=tuple(f"pid {pid}" for pid in pids),
                    fix=host.OTHER_RANKS.fix(listed=",".join(map(str, pids)), pids=list(map(str, pids)), node=name),
                )


def were_ended(facts: Facts) -> Iterator[Finding]:
    """What `--fix` did is said."""
    for name, left in _now(facts).items():
        if left.ended:
            yield host.LEFTOVERS_ENDED.finding(
                nodes=(name,), seen=f"ended {left.ended} {'process' if left.ended == 1 else 'processes'} of dead runs"
            )


def unknown_leftovers(facts: Facts) -> Iterator[Finding]:
    """A node that can't say what is left on it is said to be so."""
    for name, left in _found(facts, END_LEFTOVERS if END_LEFTOVERS.name in facts.outcomes else LEFTOVERS).items():
        if isinstance(left, Unknown):
            yield unknown.LEFTOVERS.finding(
                nodes=(name,),
                seen=f"what earlier runs left stayed unknown: {left.why}",
                fix=unknown.LEFTOVERS.fix(target=facts.cluster.node(name).target),
            )


def _now(facts: Facts) -> dict[str, Leftovers]:
    held = END_LEFTOVERS if END_LEFTOVERS.name in facts.outcomes else LEFTOVERS
    return {name: left for name, left in _found(facts, held).items() if isinstance(left, Leftovers)}


def _found(facts: Facts, exercise: "Exercise[Found]") -> Found:
    held = facts.outcome(exercise)
    if isinstance(held, Unknown):
        return {node.name: held for node in facts.reached()}
    return held or {}


def _after(cleared: Mapping[str, Any] | Unknown, again: Mapping[str, Any] | Unknown) -> Leftovers | Unknown:
    left = again if isinstance(again, Unknown) else parse_leftovers(again)
    if isinstance(left, Unknown) or isinstance(cleared, Unknown):
        return left
    count = cleared.get("ended")
    ended = count if isinstance(count, int) else 0
    return replace(left, ended=ended)


def _listed(pids: tuple[int, ...]) -> str:
    word = "pid" if len(pids) == 1 else "pids"
    return f"{word} {', '.join(map(str, pids[:_SHOWN]))}{' and more' if len(pids) > _SHOWN else ''}"


PART = Subject(
    name="leftovers",
    title="nothing is left of earlier runs",
    probes=(),
    rules=(left_running, left_lying, other_ranks, were_ended, unknown_leftovers),
    exercises=(LEFTOVERS,),
)
