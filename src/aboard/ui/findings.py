"""Findings on a terminal: what was seen, why it matters, what to type."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aboard.core.finding import Finding, Severity
from aboard.core.nodeset import fold

_MARKS = {
    Severity.BLOCK: ("✗", "bold red"),
    Severity.WARN: ("!", "bold yellow"),
    Severity.INFO: ("·", "cyan"),
}


class FindingsView:
    """All findings, worst first; equal ones on many nodes are drawn once."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._findings = folded(findings)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for finding in self._findings:
            mark, style = _MARKS[finding.severity]
            yield Text.assemble((f"{mark} {finding.code}", style), "  ", (fold(finding.nodes), "bold"))
            body = Table.grid(padding=(0, 2))
            body.add_column(style="dim", no_wrap=True)
            body.add_column(overflow="fold")
            body.add_row("seen", Text(finding.seen))
            body.add_row("why", Text(finding.why))
            # Told as the user must type it: no markup is read out of it, and it wraps without a break mark.
            body.add_row("fix", Text(finding.fix, style="green"))
            yield Padding(body, (0, 0, 1, 2))


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """Joins findings that differ only in the node's name: sixteen equal lines are one fact."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        name = finding.nodes[0] if len(finding.nodes) == 1 else ""
        shape = tuple(_without(text, name) for text in (finding.seen, finding.why, finding.fix))
        groups.setdefault((finding.code, finding.severity, finding.consequences, shape), []).append(finding)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    nodes = tuple(node for finding in group for node in finding.nodes)
    seen, why, fix = (_without(text, first.nodes[0]) for text in (first.seen, first.why, first.fix))
    return Finding(
        code=first.code,
        severity=first.severity,
        nodes=nodes,
        seen=seen.replace(_NAME, "each"),
        why=why.replace(_NAME, "each"),
        fix=fix.replace(_NAME, "NODE"),
        consequences=first.consequences,
    )


_NAME = "\0"


def _without(text: str, name: str) -> str:
    """Blanks the node's name out, as a whole word only: `n1` is not in `n10`."""
    if not name:
        return text
    parts: list[str] = []
    rest = text
    while True:
        before, found, after = rest.partition(name)
        if not found:
            return "".join(parts) + rest
        alone = not (before[-1:].isalnum() or after[:1].isalnum())
        parts += [before, _NAME if alone else name]
        rest = after
