"""A whole check on a terminal: the nodes, the findings, a line for each subject that passed or was not tested."""

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.facts import Facts
from aboard.core.rule import Subject
from aboard.diagnoses import Finding
from aboard.ui.check_table import CheckTable
from aboard.ui.collective_table import CollectiveTable
from aboard.ui.findings import FindingsView
from aboard.ui.folded import folded
from aboard.ui.hanging import hanging
from aboard.ui.marks import FINE, NOT_ASKED
from aboard.ui.verdict import Status, here_only, subject_outcomes, verdict


class CheckView:
    """Print it with `crop=False`: commands are as long as they are."""

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
        self._outcomes = subject_outcomes(facts, subjects, by_subject)
        self._table = CheckTable(facts, by_subject, self._outcomes, every_node=verbose)
        told = folded(findings)
        self._findings = FindingsView(told, in_full=verbose)
        self._collective = CollectiveTable(facts)
        self._last = f"{verdict(facts, told, self._outcomes)}.  {seconds:.1f} s"
        self._note = here_only(facts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table
        yield ""
        yield self._findings
        yield self._collective
        lines = [each for each in self._outcomes if each.status is not Status.FINDINGS]
        widest = max((len(each.subject.name) for each in lines), default=0)
        for each in lines:
            passed = each.status is Status.PASSED
            mark, style = (FINE, "green") if passed else (NOT_ASKED, "dim")
            label = Text.assemble((f"{mark.sign} ", mark.style), (each.subject.name.ljust(widest), style), "  ")
            said = f"{each.subject.title} {each.where}".rstrip() if passed else f"not tested: {each.reason}"
            yield from hanging(label, said, options.max_width, style="" if passed else "dim")
        yield self._last
        if self._note:
            yield from hanging(Text(), self._note, options.max_width, indent=2)
