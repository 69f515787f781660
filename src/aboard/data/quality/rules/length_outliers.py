"""Rows that are far longer than the others."""

from collections.abc import Iterator

from aboard.data.quality.data_evidence import DataEvidence, format_sed_script
from aboard.data.rows import RowLocation
from aboard.diagnoses import Finding, Fix
from aboard.diagnoses.trainer import data_quality

OUTLIER_FACTOR = 20
MIN_ROWS = 100


def check_length_outliers(evidence: DataEvidence) -> Iterator[Finding]:
    """Usually two files in one row, or a download that isn't text."""
    tally = evidence.tally
    unit, lengths = ("tokens", tally.tokens) if tally.encoded else ("characters", tally.characters)
    usual = lengths.percentile(0.99)
    if lengths.rows >= MIN_ROWS and lengths.longest > OUTLIER_FACTOR * max(1, usual) and tally.longest is not None:
        yield data_quality.OUTLIER.finding(
            nodes=(),
            seen=f"the longest row has {lengths.longest:,} {unit}; 99 % of the rows have at most"
            f" {usual:,}: {tally.longest.where}",
            why="Such a row is often a mistake: two files joined in one row, binary data, or a log.",
            fix=_build_fix(evidence, tally.longest.where),
        )


def _build_fix(evidence: DataEvidence, where: RowLocation) -> Fix:
    if where.unit == "line":
        return data_quality.OUTLIER.fix("line", script=format_sed_script("p", [where.line]), file=where.file)
    return data_quality.OUTLIER.fix("lengths", again=evidence.again("stats"))
