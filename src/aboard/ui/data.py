"""What is in the user's files, on a terminal: sources, sizes, a picture of the lengths, rows, findings last."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.duration import span
from aboard.data.gate.report import DataReport, Source
from aboard.data.stats import Lengths, bars
from aboard.diagnoses import Severity
from aboard.ui.figures import many
from aboard.ui.findings import FindingsView
from aboard.ui.hanging import hanging
from aboard.ui.histogram import Histogram
from aboard.ui.marks import FINE, OF_SEVERITY
from aboard.ui.tokens import RowView

BARS = 16
_LABEL = 12


class DataView:
    """Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, report: DataReport, *, stats: bool, verbose: bool) -> None:
        self._report = report
        self._stats = stats
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report, width = self._report, options.max_width
        for source in report.sources:
            yield from _source(source, width)
        yield ""
        for label, text in facts(report):
            yield from hanging(Text(f"  {label:<{_LABEL}}", style="dim"), text, width)
        yield ""
        if self._stats:
            lengths, unit = counted(report)
            yield Histogram(bars(lengths, BARS), unit, limit=report.terms.max_length if report.tally.encoded else None)
            yield ""
        for row in report.rows:
            yield RowView(row)
            yield ""
        beside = {code: RowView(row, label="  row   ") for code, row in report.examples.items()}
        yield FindingsView(report.findings, in_full=self._verbose, beside=beside)
        yield from hanging(*_last(report), width)


def facts(report: DataReport) -> Iterator[tuple[str, str]]:
    """Labels and figures of all that is trained on, in the order in which they matter."""
    tally = report.tally
    yield "rows", f"{tally.rows:,}" + (f", {tally.broken:,} of them broken" if tally.broken else "")
    lengths, unit = counted(report)
    if tally.encoded:
        share = 100 * tally.supervised / max(1, lengths.total)
        yield "tokens", f"{lengths.total:,} in an epoch, {tally.supervised:,} supervised ({share:.0f} %)"
    else:
        yield "characters", f"{lengths.total:,}; tokens, masks and bins are known with --tokenizer PATH"
    if lengths.rows:
        yield "length", told_lengths(report, lengths, unit)
    if report.fill:
        fill = report.fill
        lost = fill.tokens - fill.kept
        cut = f"; cuts off {many(lost, 'token')}" if lost else ""
        yield "bins", f"{fill.bins:,} of {fill.capacity:,} tokens, {100 * fill.full:.1f} % full{cut}"
    if report.steps is not None:
        noun = "bins" if report.fill else "rows"
        yield "steps", f"{report.steps:,} in an epoch, with {report.batch:,} {noun} each"
    if report.allowed:
        yield "allowed", ", ".join(report.allowed)


def counted(report: DataReport) -> tuple[Lengths, str]:
    """The lengths that are known best."""
    tally = report.tally
    return (tally.tokens, "tokens") if tally.encoded else (tally.characters, "characters")


def told_lengths(report: DataReport, lengths: Lengths, unit: str) -> str:
    middle, most, nearly = (lengths.percentile(share) for share in (0.5, 0.9, 0.99))
    longest = report.tally.longest
    where = f" ({longest.where})" if longest else ""
    return f"half ≤ {middle:,}, 90 % ≤ {most:,}, 99 % ≤ {nearly:,}, longest {lengths.longest:,} {unit}{where}"


def last_words(report: DataReport) -> str:
    """What it comes to."""
    blocks = sum(finding.severity is Severity.BLOCK for finding in report.findings)
    warns = sum(finding.severity is Severity.WARN for finding in report.findings)
    if blocks:
        return f"the gate is shut: {many(blocks, 'finding')} would spoil the run; {span(report.seconds)}"
    known = "" if report.tally.encoded else ", as far as can be said without a tokenizer"
    if warns:
        return f"the gate is open{known}, with {many(warns, 'warning')}; {span(report.seconds)}"
    return f"the gate is open{known}: nothing is wrong with these rows; {span(report.seconds)}"


def _source(source: Source, width: int) -> Iterator[Text]:
    files = f" ({many(source.files, 'file')})" if source.files > 1 else ""
    role = "validation " if source.validation else ""
    head = Text.assemble((f"{source.path.visible(200)}{files}", "bold"), "  ", (f"{role}{source.format}", "cyan"), "  ")
    rows = f", {many(source.tally.rows, 'row')}"
    yield from hanging(head, f"{source.why}{rows}", width, indent=2, style="dim")


def _last(report: DataReport) -> tuple[Text, str]:
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    mark = FINE if worst is Severity.INFO else OF_SEVERITY[worst]
    return Text(f"{mark.sign} ", style=mark.style), last_words(report)
