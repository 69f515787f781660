"""A row that is far longer than the others."""

from collections.abc import Iterator

from aboard.data.gate.evidence import Evidence
from aboard.diagnoses import Finding, Severity

FAR = 20
ENOUGH = 100


def outliers(evidence: Evidence) -> Iterator[Finding]:
    """Usually two files in one row, or a download that is no text."""
    tally = evidence.tally
    unit, lengths = ("tokens", tally.tokens) if tally.encoded else ("characters", tally.characters)
    usual = lengths.percentile(0.99)
    if lengths.rows >= ENOUGH and lengths.longest > FAR * max(1, usual) and tally.longest is not None:
        yield Finding(
            code="data-outlier",
            severity=Severity.INFO,
            nodes=(),
            seen=f"the longest row has {lengths.longest:,} {unit}, 99 % have at most {usual:,}: {tally.longest.where}",
            why="It is often no text: two files in one row, a page of binary data, a log.",
            fix=f"sed -n '{tally.longest.where.line}p' {tally.longest.where.file} | cut -c 1-300    # shows it"
            if tally.longest.where.unit == "line"
            else f"{evidence.again('stats')}    # shows how long rows are",
        )
