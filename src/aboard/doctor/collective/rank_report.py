"""A rank's final report as a value."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from aboard.core.decoding import DecodeError, IpAddress, Matching, MaxLength, Word, decode
from aboard.core.probes.probe import CommandOutput, ProbeParseError
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.shared.script_probes import parse_script_output
from aboard.lazy_dataclass import dataclass

# The phases of a rank, in order.
PHASES = ("meet", "import", "ready", "store", "connect", "pairs", "all_reduce", "all_gather", "done")
# It died silently, as its parent reports.
GONE = "gone"
# Factors from the algorithm's bandwidth to the bus's, of n ranks: doc/PERFORMANCE.md of nccl-tests.
OPS = {"all_reduce": 2, "all_gather": 1}
Op = Annotated[str, Matching("|".join(OPS))]
ReportLine = Annotated[Untrusted, MaxLength(500)]


@dataclass(frozen=True, kw_only=True)
class BandwidthRow:
    """One size of one collective; bandwidths in GB/s, as nccl-tests prints them."""

    op: str
    size: int
    rounds: int
    seconds: float
    algorithm: float
    bus: float


@dataclass(frozen=True, kw_only=True)
class WrongResult:
    """A wrong result; `sources` are the ranks whose part was wrong, where known."""

    op: Op
    size: int
    sources: Annotated[tuple[int, ...], MaxLength(100_000)]


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """`told` is a rank that ended because another failed, `late` one whose phase took too long.

    `blocked` are addresses that don't reply to it.
    """

    rank: int
    phase: Annotated[str, Matching("|".join((*PHASES, GONE)))]
    error: ReportLine = NO_TEXT
    told: bool = False
    late: bool = False
    blocked: tuple[IpAddress, ...] = ()
    partner: int | None = None
    stack: Annotated[tuple[ReportLine, ...], MaxLength(8, last=True)] = ()
    torch: Word = ""
    backend: Word = ""
    # Collective, size, rounds, and the seconds that each took.
    rows: tuple[tuple[Op, int, int, float], ...] = ()
    wrong: tuple[WrongResult, ...] = ()
    pairs: Mapping[int, float] = field(default_factory=dict)
    log: Annotated[tuple[ReportLine, ...], MaxLength(300)] = ()

    @property
    def well(self) -> bool:
        return self.phase == "done" and not self.error and not self.wrong


def parse_rank_reports(answer: CommandOutput) -> tuple[RankReport, ...]:
    """Parses the reports of one node's ranks."""
    document = parse_script_output(answer)
    entries = document["ranks"] if isinstance(document.get("ranks"), list) else [document]
    try:
        return tuple(decode(RankReport, each, strict=True) for each in entries)
    except DecodeError:
        raise ProbeParseError("its output can't be parsed") from None


def compute_bandwidth(op: str, size: int, rounds: int, seconds: float, world: int) -> BandwidthRow:
    """The bandwidths of a collective from its size and time."""
    algorithm = size / 1e9 / max(seconds, 1e-9)
    bus = algorithm * OPS[op] * (world - 1) / world
    return BandwidthRow(op=op, size=size, rounds=rounds, seconds=seconds, algorithm=algorithm, bus=bus)
