"""The data report on a terminal: sources, sizes, length histogram, rows, then findings."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.data.token_row import TokenRowView
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.status_marks import FINE, SEVERITY_MARKS
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Severity
from aboard.trainer.data.length_statistics import HistogramBar, LengthCounts, build_bars
from aboard.trainer.data.quality.data_report import DataReport, SourceReport

BARS = 16
_LABEL = 12


class DataReportView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, report: DataReport, *, stats: bool, verbose: bool) -> None:
        self._report = report
        self._stats = stats
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report, width = self._report, options.max_width
        for source in report.sources:
            yield from _render_source(source, width)
        yield ""
        for label, text in list_facts(report):
            yield from wrap_labelled(Text(f"  {label:<{_LABEL}}", style="dim"), text, width)
        yield ""
        if self._stats:
            lengths, unit = choose_lengths(report)
            yield HistogramView(
                build_bars(lengths, BARS), unit, limit=report.settings.max_length if report.statistics.encoded else None
            )
            yield ""
        for row in report.rows:
            yield TokenRowView(row)
            yield ""
        beside = {code: TokenRowView(row, label="  row   ") for code, row in report.examples.items()}
        yield FindingsView(report.findings, in_full=self._verbose, beside=beside)
        yield from wrap_labelled(*_render_conclusion(report), width)


def list_facts(report: DataReport) -> Iterator[tuple[str, str]]:
    """Labels and figures of the training data, the most important first."""
    statistics = report.statistics
    yield "rows", f"{statistics.rows:,}" + (f", {statistics.broken:,} of them left out" if statistics.broken else "")
    lengths, unit = choose_lengths(report)
    if statistics.encoded:
        share = 100 * statistics.supervised / max(1, lengths.total)
        yield "tokens", f"{lengths.total:,} per epoch, {statistics.supervised:,} supervised ({share:.0f} %)"
    else:
        yield "characters", f"{lengths.total:,}; use --tokenizer PATH to see tokens, masks and packed sequences"
    if lengths.rows:
        yield "length", format_lengths(report, lengths, unit)
    if report.fill:
        fill = report.fill
        lost = fill.tokens - fill.kept
        cut = f"; {format_count(lost, 'token')} cut off" if lost else ""
        count = format_count(fill.bins, "packed sequence")
        yield "packing", f"{count} of {fill.capacity:,} tokens, {100 * fill.full:.1f} % full{cut}"
    if report.steps is not None:
        noun = "packed sequence" if report.fill else "row"
        yield "steps", f"{report.steps:,} per epoch, with {format_count(report.batch or 0, noun)} each"
    if report.allowed:
        yield "allowed", ", ".join(report.allowed)


def choose_lengths(report: DataReport) -> tuple[LengthCounts, str]:
    """The lengths in tokens, or else in characters."""
    statistics = report.statistics
    return (statistics.tokens, "tokens") if statistics.encoded else (statistics.characters, "characters")


def format_lengths(report: DataReport, lengths: LengthCounts, unit: str) -> str:
    middle, most, nearly = (lengths.percentile(share) for share in (0.5, 0.9, 0.99))
    longest = report.statistics.longest
    where = f" ({longest.location})" if longest else ""
    return f"50 % ≤ {middle:,}, 90 % ≤ {most:,}, 99 % ≤ {nearly:,}, longest {lengths.longest:,} {unit}{where}"


def format_conclusion(report: DataReport) -> str:
    """The result of the data check in one line."""
    blocks = sum(finding.severity is Severity.BLOCK for finding in report.findings)
    warns = sum(finding.severity is Severity.WARN for finding in report.findings)
    if blocks:
        return (
            f"data check failed: {format_count(blocks, 'finding')} would spoil the run;"
            f" {format_duration(report.seconds)}"
        )
    caveat = "" if report.statistics.encoded else " (tokens not tested: no tokenizer)"
    if warns:
        return f"data check passed{caveat}, with {format_count(warns, 'warning')}; {format_duration(report.seconds)}"
    return f"data check passed{caveat}: nothing wrong was found; {format_duration(report.seconds)}"


def _render_source(source: SourceReport, width: int) -> Iterator[Text]:
    files = f" ({format_count(source.files, 'file')})" if source.files > 1 else ""
    role = "validation " if source.validation else ""
    head = Text.assemble((f"{source.path.visible(200)}{files}", "bold"), "  ", (f"{role}{source.format}", "cyan"), "  ")
    rows = f", {format_count(source.statistics.rows, 'row')}"
    yield from wrap_labelled(head, f"{source.why}{rows}", width, indent=2, style="dim")


def _render_conclusion(report: DataReport) -> tuple[Text, str]:
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    mark = FINE if worst is Severity.INFO else SEVERITY_MARKS[worst]
    return Text(f"{mark.sign} ", style=mark.style), format_conclusion(report)


# Eighths of a cell.
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_FULL = "█"
# Longer bars show no more.
WIDEST = 60


class HistogramView:
    """As wide as the terminal allows; a line marks the limit, and bars past it have another colour."""

    def __init__(self, bars: Sequence[HistogramBar], unit: str, *, limit: int | None = None) -> None:
        self._bars = bars
        self._unit = unit
        self._limit = limit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._bars:
            return
        most = max(bar.rows for bar in self._bars)
        ranges = [f"{bar.low:,}–{bar.high:,}" if bar.low < bar.high else f"{bar.low:,}" for bar in self._bars]
        ends = max(len(self._unit), *map(len, ranges))
        counts = max(len("rows"), len(f"{most:,}"))
        width = max(8, min(WIDEST, options.max_width - ends - counts - 8))
        yield Text(f"  {self._unit:>{ends}}  {'rows':>{counts}}", style="dim")
        marked = False
        for bar, label in zip(self._bars, ranges, strict=True):
            past = self._limit is not None and bar.low > self._limit
            if self._limit is not None and not marked and bar.high > self._limit:
                yield Text(f"  {'─' * (ends + counts + 2)}  max_length {self._limit:,}", style="dim")
                marked = True
            line = Text.assemble(
                f"  {label:>{ends}}  {bar.rows:>{counts},}  ",
                (_draw_bar(bar.rows / most, width), "yellow" if past else "cyan"),
                no_wrap=True,
                overflow="ignore",
            )
            line.rstrip()
            yield line


def _draw_bar(share: float, width: int) -> str:
    """A bar in eighths of a cell; at least one eighth if there is anything to show."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    return _FULL * whole + _EIGHTHS[rest]
