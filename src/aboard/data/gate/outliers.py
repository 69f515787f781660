"""A row that is far longer than the others."""

from collections.abc import Iterator

from aboard.data.gate.evidence import Evidence, script
from aboard.data.rows import Where
from aboard.diagnoses import Finding, Fix, data_quality

FAR = 20
ENOUGH = 100


def outliers(evidence: Evidence) -> Iterator[Finding]:
    """Usually two files in one row, or a download that is no text."""
    tally = evidence.tally
    unit, lengths = ("tokens", tally.tokens) if tally.encoded else ("characters", tally.characters)
    usual = lengths.percentile(0.99)
    if lengths.rows >= ENOUGH and lengths.longest > FAR * max(1, usual) and tally.longest is not None:
        yield data_quality.OUTLIER.finding(
            nodes=(),
            seen=f"the longest row has {lengths.longest:,} {unit}, 99 % have at most {usual:,}: {tally.longest.where}",
            why="It is often no text: two files in one row, a page of binary data, a log.",
            fix=_fix(evidence, tally.longest.where),
        )


def _fix(evidence: Evidence, where: Where) -> Fix:
    if where.unit == "line":
        return data_quality.OUTLIER.fix("line", script=script("p", [where.line]), file=where.file)
    return data_quality.OUTLIER.fix("lengths", again=evidence.again("stats"))
