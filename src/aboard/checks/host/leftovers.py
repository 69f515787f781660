"""Leftovers: what earlier runs left running or lying on a node; `aboard check --fix` ends it, by run id only."""

from collections.abc import Iterator, Mapping
from typing import Any

from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.rule import Subject
from aboard.core.words import visible
from aboard.diagnoses import Diagnosis, Finding, Severity
from aboard.lazy import dataclass

_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Remains:
    """Processes of a run that nobody keeps any more, and what the first of them is."""

    run: str
    pids: tuple[int, ...]
    what: str


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A rank that another launcher started; an orphan has outlived it."""

    pid: int
    orphan: bool
    what: str


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What one node has; `places` are runs of which a directory is left, `ended` counts what was just ended there."""

    runs: tuple[Remains, ...] = ()
    places: tuple[str, ...] = ()
    strays: tuple[Stray, ...] = ()
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
    """What a node said, as values; it goes to a screen and into commands, so it is held to its types."""
    try:
        return Leftovers(
            runs=tuple(
                Remains(run=visible(str(run)), pids=tuple(map(_pid, told["pids"])), what=visible(str(told["what"])))
                for run, told in dict(reply["runs"]).items()
            ),
            places=tuple(visible(str(run)) for run in list(reply["places"])),
            strays=tuple(
                Stray(pid=_pid(pid), orphan=bool(orphan), what=visible(str(what)))
                for pid, orphan, what in list(reply["strays"])
            ),
        )
    except (KeyError, TypeError, ValueError):
        return Unknown(why="an answer that is none")


def left_running(facts: Facts) -> Iterator[Finding]:
    """Ranks of a dead run hold memory, accelerators and ports that the next one needs."""
    for name, left in _now(facts).items():
        for remains in left.runs:
            count = len(remains.pids)
            yield Finding(
                code="host-leftovers",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"{count} {'process' if count == 1 else 'processes'} of run {remains.run} without a keeper:"
                f" {remains.what}, {_listed(remains.pids)}",
                why="They hold memory, accelerators and ports: the next run dies of `out of memory` or"
                " `Address already in use`.",
                about=tuple(f"pid {pid}" for pid in remains.pids),
                fix=f"aboard check --fix    # here; the same check as before: ends what carries the run's id on {name}",
            )


def left_lying(facts: Facts) -> Iterator[Finding]:
    """A directory without a keeper takes space and nothing else, unless the run id is used again."""
    for name, left in _now(facts).items():
        running = {remains.run for remains in left.runs}
        lying = [run for run in left.places if run not in running]
        if lying:
            yield Finding(
                code="host-leftover-files",
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"logs of {len(lying)} dead {'run' if len(lying) == 1 else 'runs'} in /tmp:"
                f" {', '.join(lying[:_SHOWN])}",
                why="Their keepers were killed and could not clear away; nothing of them runs.",
                fix=f"aboard check --fix    # here; the same check as before: removes them on {name}",
            )


def other_ranks(facts: Facts) -> Iterator[Finding]:
    """Ranks that torchrun, deepspeed or a script started: perhaps yours and wanted, so never ended by us."""
    for name, left in _now(facts).items():
        for orphan, severity in ((True, Severity.WARN), (False, Severity.INFO)):
            strays = [stray for stray in left.strays if stray.orphan is orphan]
            if strays:
                pids = tuple(stray.pid for stray in strays)
                state = "whose launcher is gone" if orphan else "of another launcher"
                yield Finding(
                    code="host-other-ranks",
                    severity=severity,
                    nodes=(name,),
                    seen=f"{len(strays)} {'rank' if len(strays) == 1 else 'ranks'} {state}: {strays[0].what},"
                    f" {_listed(pids)}",
                    why="They have RANK and MASTER_ADDR set, run as you, and were not started by Aboard; they may hold"
                    " what the next run needs.",
                    about=tuple(f"pid {pid}" for pid in pids),
                    fix=f"ps -o pid,etime,args -p {','.join(map(str, pids))}    # on {name}; are they still wanted?\n"
                    f"kill {' '.join(map(str, pids))}    # on {name}; if not",
                )


def were_ended(facts: Facts) -> Iterator[Finding]:
    """What `--fix` did is said."""
    for name, left in _now(facts).items():
        if left.ended:
            yield Finding(
                code="host-leftovers-ended",
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"ended {left.ended} {'process' if left.ended == 1 else 'processes'} of dead runs",
                why="You asked for it with --fix; only what carries a dead run's id was touched.",
                fix="",
            )


def unknown_leftovers(facts: Facts) -> Iterator[Finding]:
    """A node that can't say what is left on it is said to be so."""
    for name, left in _found(facts, END_LEFTOVERS if END_LEFTOVERS.name in facts.outcomes else LEFTOVERS).items():
        if isinstance(left, Unknown):
            yield Finding(
                code="unknown-leftovers",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"what earlier runs left stayed unknown: {left.why}",
                why="What can't be asked can't be vouched for.",
                fix=f"ssh {facts.cluster.node(name).target} 'ps -u $USER -o pid,etime,args'",
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
    return Leftovers(runs=left.runs, places=left.places, strays=left.strays, ended=ended)


def _pid(given: object) -> int:
    if isinstance(given, int) and given > 0:
        return int(given)
    raise ValueError("no process has that number")


def _listed(pids: tuple[int, ...]) -> str:
    word = "pid" if len(pids) == 1 else "pids"
    return f"{word} {', '.join(map(str, pids[:_SHOWN]))}{' and more' if len(pids) > _SHOWN else ''}"


PART = Subject(
    name="leftovers",
    title="nothing is left of earlier runs",
    probes=(),
    rules=(left_running, left_lying, other_ranks, were_ended, unknown_leftovers),
    exercises=(LEFTOVERS,),
    stories=(
        Diagnosis(
            code="host-leftovers",
            title="processes of an earlier run are still there",
            severity=Severity.WARN,
            symptoms=(
                "CUDA out of memory, at once, on one node",
                "The server socket has failed to listen on any local network address.",
                "code: -98, name: EADDRINUSE, message: address already in use",
            ),
            explanation="Every rank carries its run's id (ABOARD_RUN_ID) in its environment, and a keeper ends all of"
            " them when the run is over. A keeper and its guard that were both killed, by an out-of-memory killer or by"
            " hand, can't. What carries the id of a run that has no keeper any more is a leftover.",
            remedy="`aboard check --fix` ends them on every node, by run id only: no name patterns, nothing of a run"
            " that still has its keeper, nothing that Aboard didn't start. By hand:"
            " `grep -lz ABOARD_RUN_ID=RUN /proc/[0-9]*/environ` lists them.",
            leads_to=(
                "network-port-taken",
                "host-busy-gpu",
            ),
        ),
        Diagnosis(
            code="host-leftover-files",
            title="a dead run's directory lies in /tmp",
            severity=Severity.INFO,
            symptoms=("a directory of a run that is over, as aboard-1000/RUN",),
            explanation="A keeper has a private directory with the last output of its ranks, and removes it at its"
            " end. One that was killed, or lost its power, leaves it.",
            remedy="`aboard check --fix` removes it. It may hold the last words of the ranks: look first, if you need"
            " them.",
        ),
        Diagnosis(
            code="host-other-ranks",
            title="ranks of another launcher run there",
            severity=Severity.WARN,
            symptoms=("EADDRINUSE", "CUDA out of memory", "python processes that survive `pkill deepspeed`"),
            explanation="torchrun, DeepSpeed and mpirun don't always end what they started: when the launcher is"
            " killed or its ssh is cut, ranks on the other nodes go on. They are known by RANK and MASTER_ADDR in"
            " their environment. Those whose launcher is gone are a warning; those that have one may be a run of yours"
            " that is going well.",
            remedy="`ps -o pid,ppid,etime,args -p PID` says what it is and how long it has run. End it with `kill PID`,"
            " and with `kill -9 PID` if it doesn't go. Aboard never ends what it didn't start.",
            leads_to=(
                "network-port-taken",
                "host-busy-gpu",
            ),
        ),
        Diagnosis(
            code="host-leftovers-ended",
            title="leftovers were ended",
            severity=Severity.INFO,
            symptoms=("ended 3 processes of dead runs",),
            explanation="`aboard check --fix` was given, and ended the processes that carry the id of a run without a"
            " keeper.",
            remedy="Nothing is left to do.",
        ),
        Diagnosis(
            code="unknown-leftovers",
            title="a node could not say what is left on it",
            severity=Severity.WARN,
            symptoms=("what earlier runs left stayed unknown",),
            explanation="What can't be asked can't be vouched for: its processes could not be listed in time.",
            remedy="`ps -u $USER -o pid,stat,etime,args` on the node; a process in state D hangs in the kernel, mostly"
            " on a dead mount.",
        ),
    ),
)
