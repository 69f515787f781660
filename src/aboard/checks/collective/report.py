"""What a rank said at its end, as a value."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from aboard.checks.scripted import said
from aboard.core.probe import Output, Unparsed
from aboard.core.words import visible
from aboard.lazy import dataclass

# How far a rank can come, in order.
PHASES = ("meet", "import", "ready", "store", "connect", "pairs", "all_reduce", "all_gather", "done")
# It ended without a word, which its parent tells of.
GONE = "gone"
# Factors from the algorithm's bandwidth to the bus's, of n ranks: doc/PERFORMANCE.md of nccl-tests.
OPS = {"all_reduce": 2, "all_gather": 1}
_LINES = 300


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size of one collective; bandwidths in GB/s, as nccl-tests prints them."""

    op: str
    size: int
    rounds: int
    seconds: float
    algorithm: float
    bus: float


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A result that isn't what it must be; `sources` are the ranks whose part of it was wrong, where one can tell."""

    op: str
    size: int
    sources: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """`told` is a rank that ended because another had failed, `late` one whose phase took too long.

    `blocked` are addresses that don't answer it.
    """

    rank: int
    phase: str
    error: str = ""
    told: bool = False
    late: bool = False
    blocked: tuple[str, ...] = ()
    partner: int | None = None
    stack: tuple[str, ...] = ()
    torch: str = ""
    backend: str = ""
    rows: tuple[Row, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    pairs: Mapping[int, float] = field(default_factory=dict)
    log: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        return self.phase == "done" and not self.error and not self.wrong


def parse_reports(answer: Output, world: int) -> tuple[Report, ...]:
    """What the ranks of one node said; Unparsed when it is nothing that a rank says."""
    told = said(answer)
    given = told["ranks"] if isinstance(told.get("ranks"), list) else [told]
    try:
        return tuple(_report(each, world) for each in given)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unparsed("what it printed can't be read") from None


def row(op: str, size: int, rounds: int, seconds: float, world: int) -> Row:
    """The figures of a collective that took so long."""
    algorithm = size / 1e9 / max(seconds, 1e-9)
    bus = algorithm * OPS[op] * (world - 1) / world
    return Row(op=op, size=size, rounds=rounds, seconds=seconds, algorithm=algorithm, bus=bus)


def _report(told: Mapping[str, Any], world: int) -> Report:
    phase = str(told["phase"])
    if phase not in (*PHASES, GONE):
        raise ValueError(phase)
    partner = told.get("partner")
    return Report(
        rank=int(told["rank"]),
        phase=phase,
        error=visible(str(told.get("error", "")), 300),
        told=told.get("told") is True,
        late=told.get("late") is True,
        blocked=tuple(visible(str(each)) for each in told.get("blocked", ())),
        partner=None if partner is None else int(partner),
        stack=tuple(visible(str(line).rstrip(), 300) for line in told.get("stack", ())[-8:]),
        torch=visible(str(told.get("torch", ""))),
        backend=visible(str(told.get("backend", ""))),
        rows=tuple(
            row(str(op), int(size), int(rounds), float(seconds), world)
            for op, size, rounds, seconds in told.get("rows", ())
        ),
        wrong=tuple(
            Wrong(op=visible(str(op)), size=int(size), sources=tuple(map(int, sources)))
            for op, size, sources in told.get("wrong", ())
        ),
        pairs={int(rank): float(mbit) for rank, mbit in told.get("pairs", {}).items()},
        log=tuple(visible(str(line), 500) for line in told.get("log", ())[:_LINES]),
    )
