"""The report of a check on a terminal: nodes, findings, and a line per subject that passed or was not tested."""

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.check.collective_table import CollectiveTable
from aboard.commands.check.node_table import CheckNodeTable
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.findings.merge_findings import merge_findings
from aboard.commands.shared.findings.subject_results import (
    SubjectStatus,
    format_conclusion,
    format_source_note,
    summarize_subjects,
)
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.status_marks import FINE, NOT_ASKED
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding


class CheckReportView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(
        self,
        facts: Facts,
        subjects: Sequence[Subject],
        by_subject: Mapping[str, Sequence[Finding]],
        findings: Sequence[Finding],
        *,
        seconds: float,
        verbose: bool,
    ) -> None:
        self._outcomes = summarize_subjects(facts, subjects, by_subject)
        self._table = CheckNodeTable(facts, by_subject, self._outcomes, every_node=verbose)
        merged = merge_findings(findings)
        self._findings = FindingsView(merged, in_full=verbose)
        self._collective = CollectiveTable(facts)
        self._last = f"{format_conclusion(facts, merged, self._outcomes)}.  {seconds:.1f} s"
        self._note = format_source_note(facts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table
        yield ""
        yield self._findings
        yield self._collective
        lines = [each for each in self._outcomes if each.status is not SubjectStatus.FINDINGS]
        widest = max((len(each.subject.name) for each in lines), default=0)
        for each in lines:
            passed = each.status is SubjectStatus.PASSED
            mark, style = (FINE, "green") if passed else (NOT_ASKED, "dim")
            label = Text.assemble((f"{mark.sign} ", mark.style), (each.subject.name.ljust(widest), style), "  ")
            text = f"{each.subject.title} {each.where}".rstrip() if passed else f"not tested: {each.reason}"
            yield from wrap_labelled(label, text, options.max_width, style="" if passed else "dim")
        yield self._last
        if self._note:
            yield from wrap_labelled(Text(), self._note, options.max_width, indent=2)
