"""The result of `aboard data`: a value for the terminal, for pipes and for JSON."""

from collections.abc import Mapping
from dataclasses import field

from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import DataStatistics
from aboard.trainer.data.sampling.packing_estimate import PackingEstimate
from aboard.trainer.data.tokens.row_preview import RowPreview


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """One file, directory or hub name and its statistics; `why` says how its format was recognized."""

    path: Untrusted
    format: str
    why: str
    columns: tuple[str, ...]
    statistics: DataStatistics
    files: int = 1
    validation: bool = False


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """All sources and their sum, findings worst first, and row previews: requested ones and examples of findings."""

    sources: tuple[SourceReport, ...]
    statistics: DataStatistics
    settings: EncodingSettings
    findings: tuple[Finding, ...]
    allowed: tuple[str, ...] = ()
    rows: tuple[RowPreview, ...] = ()
    examples: Mapping[str, RowPreview] = field(default_factory=dict)
    fill: PackingEstimate | None = None
    batch: int | None = None
    seconds: float = 0.0

    @property
    def sequences(self) -> int:
        """What a batch consists of: packed sequences if the data is packed, else rows."""
        return self.fill.bins if self.fill else self.statistics.rows

    @property
    def steps(self) -> int | None:
        """Steps of one epoch; the last one may be smaller."""
        return -(-self.sequences // self.batch) if self.batch else None
