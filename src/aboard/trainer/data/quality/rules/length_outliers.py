"""Rows that are far longer than the others."""

from collections.abc import Iterator

from aboard.diagnoses import Finding, Fix
from aboard.trainer.data.quality.data_evidence import DataEvidence, format_sed_script
from aboard.trainer.data.rows import RowLocation
from aboard.trainer.diagnoses import data_quality

OUTLIER_FACTOR = 20
MIN_ROWS = 100


def check_length_outliers(evidence: DataEvidence) -> Iterator[Finding]:
    """Usually two files in one row, or a download that isn't text."""
    statistics = evidence.statistics
    unit, lengths = ("tokens", statistics.tokens) if statistics.encoded else ("characters", statistics.characters)
    usual = lengths.percentile(0.99)
    if lengths.rows >= MIN_ROWS and lengths.longest > OUTLIER_FACTOR * max(1, usual) and statistics.longest is not None:
        yield data_quality.OUTLIER.finding(
            nodes=(),
            seen=f"the longest row has {lengths.longest:,} {unit}; 99 % of the rows have at most"
            f" {usual:,}: {statistics.longest.where}",
            why="Such a row is often a mistake: two files joined in one row, binary data, or a log.",
            fix=_build_fix(evidence, statistics.longest.where),
        )


def _build_fix(evidence: DataEvidence, location: RowLocation) -> Fix:
    if location.unit == "line":
        return data_quality.OUTLIER.fix("line", script=format_sed_script("p", [location.line]), file=location.file)
    return data_quality.OUTLIER.fix("lengths", again=evidence.again("stats"))
