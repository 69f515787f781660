"""What `aboard data` found out: a value, for the terminal, for pipes and for JSON."""

from collections.abc import Mapping
from dataclasses import field

from aboard.data.feed.fill import Fill
from aboard.data.gate.tally import Tally
from aboard.data.gate.terms import Terms
from aboard.data.tokens.pieces import Shown
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file, directory or hub name, and what is in it. `why` says how its format was recognised."""

    path: Untrusted
    format: str
    why: str
    columns: tuple[str, ...]
    tally: Tally
    files: int = 1
    validation: bool = False


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """All sources and their sum, the findings worst first, and rows to look at: those asked for, those of findings."""

    sources: tuple[Source, ...]
    tally: Tally
    terms: Terms
    findings: tuple[Finding, ...]
    allowed: tuple[str, ...] = ()
    rows: tuple[Shown, ...] = ()
    examples: Mapping[str, Shown] = field(default_factory=dict)
    fill: Fill | None = None
    batch: int | None = None
    seconds: float = 0.0

    @property
    def sequences(self) -> int:
        """What a batch is made of: bins where there are some, else rows."""
        return self.fill.bins if self.fill else self.tally.rows

    @property
    def steps(self) -> int | None:
        """Of an epoch; the last one may be smaller."""
        return -(-self.sequences // self.batch) if self.batch else None
