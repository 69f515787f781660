"""Findings on a terminal: what was observed, why it matters, the fix."""

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from aboard.commands.shared.copyable_commands import CopyableCommands
from aboard.commands.shared.findings.merge_findings import merge_findings
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.status_marks import SEVERITY_MARKS
from aboard.core.cluster.node_sets import fold_names
from aboard.diagnoses import Finding, Severity


class FindingsView:
    """Findings in the given order; info findings get one line each unless `in_full`.

    `beside` has a renderable to draw below the findings of a code. Print this with `crop=False`, so that long commands
    are not cut.
    """

    def __init__(
        self, findings: Iterable[Finding], *, in_full: bool, beside: Mapping[str, RenderableType] | None = None
    ) -> None:
        self._findings = list(findings)
        self._in_full = in_full
        self._beside = beside or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        in_detail = [each for each in self._findings if self._in_full or each.severity is not Severity.INFO]
        for finding in in_detail:
            yield from _render_finding(finding, options.max_width, self._beside.get(finding.code))
        rest = [finding for finding in self._findings if finding.severity is Severity.INFO and not self._in_full]
        for finding in rest:
            yield from wrap_labelled(_render_heading(finding).append("  "), finding.seen, options.max_width, indent=2)
        if rest:
            yield ""


def _render_finding(finding: Finding, width: int, beside: RenderableType | None) -> Iterator[RenderableType]:
    yield _render_heading(finding)
    yield from wrap_labelled(Text("  seen  ", style="dim"), finding.seen, width)
    if finding.why:
        yield from wrap_labelled(Text("  why   ", style="dim"), finding.why, width)
    yield CopyableCommands(finding.fix, first=Text("  fix   ", style="dim"))
    for each in merge_findings(_list_consequences(finding)):
        label = Text.assemble(
            ("  then also: ", "dim"), (f"{each.code} {fold_names(each.nodes)}".strip(), "dim bold"), "  "
        )
        yield from wrap_labelled(label, each.seen, width, indent=8, style="dim")
    if beside is not None:
        yield beside
    yield ""


def _render_heading(finding: Finding) -> Text:
    mark = SEVERITY_MARKS[finding.severity]
    head = Text.assemble((f"{mark.sign} {finding.code}", mark.style))
    return head.append(f"  {fold_names(finding.nodes)}", style="bold") if finding.nodes else head


def _list_consequences(finding: Finding) -> Iterator[Finding]:
    for consequence in finding.consequences:
        yield consequence
        yield from _list_consequences(consequence)
