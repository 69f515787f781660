"""What a rank said at its end, as a value."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from aboard.checks.network.mesh import IpAddress
from aboard.checks.scripted import said
from aboard.core.decoding import DecodeError, Limit, Matching, Word, decode
from aboard.core.probe import Output, Unparsed
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

# How far a rank can come, in order.
PHASES = ("meet", "import", "ready", "store", "connect", "pairs", "all_reduce", "all_gather", "done")
# It ended without a word, which its parent tells of.
GONE = "gone"
# Factors from the algorithm's bandwidth to the bus's, of n ranks: doc/PERFORMANCE.md of nccl-tests.
OPS = {"all_reduce": 2, "all_gather": 1}
Op = Annotated[str, Matching("|".join(OPS))]
Line = Annotated[Untrusted, Limit(500)]


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

    op: Op
    size: int
    sources: Annotated[tuple[int, ...], Limit(100_000)]


@dataclass(frozen=True, kw_only=True)
class Report:
    """`told` is a rank that ended because another had failed, `late` one whose phase took too long.

    `blocked` are addresses that don't answer it.
    """

    rank: int
    phase: Annotated[str, Matching("|".join((*PHASES, GONE)))]
    error: Line = NO_TEXT
    told: bool = False
    late: bool = False
    blocked: tuple[IpAddress, ...] = ()
    partner: int | None = None
    stack: Annotated[tuple[Line, ...], Limit(8, last=True)] = ()
    torch: Word = ""
    backend: Word = ""
    # Collective, size, rounds, and the seconds that each took.
    rows: tuple[tuple[Op, int, int, float], ...] = ()
    wrong: tuple[Wrong, ...] = ()
    pairs: Mapping[int, float] = field(default_factory=dict)
    log: Annotated[tuple[Line, ...], Limit(300)] = ()

    @property
    def well(self) -> bool:
        return self.phase == "done" and not self.error and not self.wrong


def parse_reports(answer: Output) -> tuple[Report, ...]:
    """What the ranks of one node said; Unparsed when it is nothing that a rank says."""
    told = said(answer)
    given = told["ranks"] if isinstance(told.get("ranks"), list) else [told]
    try:
        return tuple(decode(Report, each, strict=True) for each in given)
    except DecodeError:
        raise Unparsed("what it printed can't be read") from None


def row(op: str, size: int, rounds: int, seconds: float, world: int) -> Row:
    """The figures of a collective that took so long."""
    algorithm = size / 1e9 / max(seconds, 1e-9)
    bus = algorithm * OPS[op] * (world - 1) / world
    return Row(op=op, size=size, rounds=rounds, seconds=seconds, algorithm=algorithm, bus=bus)
