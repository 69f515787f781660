"""Findings on a terminal: what was seen, why it matters, what to type."""

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from aboard.core.nodeset import fold
from aboard.diagnoses import Finding, Severity
from aboard.ui.commands import Commands
from aboard.ui.folded import folded
from aboard.ui.hanging import hanging
from aboard.ui.marks import OF_SEVERITY


class FindingsView:
    """Findings in the order given; what is merely worth knowing gets a line, unless all is wanted in full.

    `beside` has what can be looked at for a code, drawn below what is told of it. Print it with `crop=False`: commands
    are as long as they are.
    """

    def __init__(
        self, findings: Iterable[Finding], *, in_full: bool, beside: Mapping[str, RenderableType] | None = None
    ) -> None:
        self._findings = list(findings)
        self._in_full = in_full
        self._beside = beside or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = [each for each in self._findings if self._in_full or each.severity is not Severity.INFO]
        for finding in whole:
            yield from _whole(finding, options.max_width, self._beside.get(finding.code))
        rest = [finding for finding in self._findings if finding.severity is Severity.INFO and not self._in_full]
        for finding in rest:
            yield from hanging(_head(finding).append("  "), finding.seen, options.max_width, indent=2)
        if rest:
            yield ""


def _whole(finding: Finding, width: int, beside: RenderableType | None) -> Iterator[RenderableType]:
    yield _head(finding)
    yield from hanging(Text("  seen  ", style="dim"), finding.seen, width)
    yield from hanging(Text("  why   ", style="dim"), finding.why, width)
    yield Commands(finding.fix, first=Text("  fix   ", style="dim"))
    for each in folded(_consequences(finding)):
        label = Text.assemble(("  then also: ", "dim"), (f"{each.code} {fold(each.nodes)}".strip(), "dim bold"), "  ")
        yield from hanging(label, each.seen, width, indent=8, style="dim")
    if beside is not None:
        yield beside
    yield ""


def _head(finding: Finding) -> Text:
    mark = OF_SEVERITY[finding.severity]
    head = Text.assemble((f"{mark.sign} {finding.code}", mark.style))
    return head.append(f"  {fold(finding.nodes)}", style="bold") if finding.nodes else head


def _consequences(finding: Finding) -> Iterator[Finding]:
    for consequence in finding.consequences:
        yield consequence
        yield from _consequences(consequence)
