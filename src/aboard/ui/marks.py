"""The marks of a check: one sign and one style for each thing that can be known of a node and a subject."""

from collections.abc import Iterator, Mapping, Sequence

from aboard.diagnoses import Finding, Severity
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A sign of one cell, and how it is drawn; the sign alone must do where there is no colour."""

    sign: str
    style: str


NOT_ASKED = Mark(sign="–", style="dim")
ASKED = Mark(sign="…", style="dim")
ANSWERED = Mark(sign="○", style="green")
FINE = Mark(sign="✓", style="bold green")
OF_SEVERITY = {
    Severity.BLOCK: Mark(sign="✗", style="bold red"),
    Severity.WARN: Mark(sign="!", style="bold yellow"),
    Severity.INFO: Mark(sign="·", style="bold cyan"),
}


def mark_node(worst: Severity | None, *, tested: bool) -> Mark:
    """The mark of a node for a subject; an info alone doesn't make a pass of what wasn't tested."""
    if worst is not None and (tested or worst is not Severity.INFO):
        return OF_SEVERITY[worst]
    return FINE if tested else NOT_ASKED


def worst_of(by_subject: Mapping[str, Sequence[Finding]]) -> dict[str, dict[str, Severity]]:
    """For each subject the worst that was found of each node; "" stands for findings that name no node."""
    worst: dict[str, dict[str, Severity]] = {subject: {} for subject in by_subject}
    for subject, findings in by_subject.items():
        for finding in findings:
            for owner, each in _spread(subject, finding, by_subject):
                for node in each.nodes or ("",):
                    worst[owner][node] = max(each.severity, worst[owner].get(node, each.severity))
    return worst


def _spread(subject: str, finding: Finding, subjects: Mapping[str, object]) -> Iterator[tuple[str, Finding]]:
    """The finding and what follows from it: folded under its cause, a consequence still spoils its own subject."""
    yield subject, finding
    for consequence in finding.consequences:
        prefix = consequence.code.partition("-")[0]
        yield from _spread(prefix if prefix in subjects else subject, consequence, subjects)
