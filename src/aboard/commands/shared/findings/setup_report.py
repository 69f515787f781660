"""What a command did on the nodes, described once for the terminal and for a pipe."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.findings.finding_lines import format_finding_lines
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.findings.merge_findings import merge_findings
from aboard.commands.shared.status_marks import FINE
from aboard.diagnoses import Finding
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class SetupReport:
    """The steps that were done, remarks, findings and the conclusion; `hint` is for a terminal only.

    Print it with `crop=False`, so that long commands are not cut.
    """

    steps: Sequence[str]
    remarks: Sequence[str] = ()
    findings: Sequence[Finding]
    conclusion: str
    seconds: float
    hint: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.steps:
            yield Text.assemble((f"{FINE.sign} ", FINE.style), line)
        for line in self.remarks:
            yield Text(line, style="dim")
        if self.findings:
            yield ""
            yield FindingsView(merge_findings(self.findings), in_full=True)
        yield f"{self.conclusion[0].upper()}{self.conclusion[1:]}.  {self.seconds:.1f} s"
        if self.hint:
            yield Text(self.hint, style="dim")

    def format_lines(self) -> Iterator[str]:
        """Plain lines, each with its kind first; findings come unmerged, so that grep finds every node."""
        for finding in self.findings:
            yield from format_finding_lines(finding)
        yield from (f"fine {line}" for line in self.steps)
        yield from (f"note {line}" for line in self.remarks)
        yield f"done: {self.conclusion}; {self.seconds:.1f} s"
