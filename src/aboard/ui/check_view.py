"""A whole check on a terminal: the nodes, the findings, a green line for each subject that is well, the verdict."""

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.facts import Facts
from aboard.core.finding import Finding
from aboard.core.rule import Subject
from aboard.ui.check_table import CheckTable
from aboard.ui.collective_table import CollectiveTable
from aboard.ui.findings import FindingsView
from aboard.ui.folded import folded
from aboard.ui.hanging import hanging
from aboard.ui.verdict import healthy, verdict


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
        self._table = CheckTable(facts, by_subject, every_node=verbose)
        told = folded(findings)
        self._findings = FindingsView(told, in_full=verbose)
        self._collective = CollectiveTable(facts)
        self._well = list(healthy(facts, subjects, by_subject))
        self._last = f"{verdict(facts, told)}.  {seconds:.1f} s"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table
        yield ""
        yield self._findings
        yield self._collective
        widest = max((len(subject.name) for subject, _so_far in self._well), default=0)
        for subject, so_far in self._well:
            label = Text.assemble(("✓ ", "bold green"), (subject.name.ljust(widest), "green"), "  ")
            yield from hanging(label, f"{subject.title} {so_far}".rstrip(), options.max_width)
        yield self._last
