"""The marks of a check: a sign and a style for each status of a subject on a node."""

from collections.abc import Iterator, Mapping, Sequence

from aboard.diagnoses import Finding, Severity
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class StatusMark:
    """A sign of one cell and its style; the sign must be clear without colour."""

    sign: str
    style: str


NOT_ASKED = StatusMark(sign="–", style="dim")
PENDING = StatusMark(sign="…", style="dim")
ANSWERED = StatusMark(sign="○", style="green")
FINE = StatusMark(sign="✓", style="bold green")
SEVERITY_MARKS = {
    Severity.BLOCK: StatusMark(sign="✗", style="bold red"),
    Severity.WARN: StatusMark(sign="!", style="bold yellow"),
    Severity.INFO: StatusMark(sign="·", style="bold cyan"),
}


def mark_node(worst: Severity | None, *, tested: bool) -> StatusMark:
    """The mark of a node for a subject; an info finding does not turn an untested subject into a pass."""
    if worst is not None and (tested or worst is not Severity.INFO):
        return SEVERITY_MARKS[worst]
    return FINE if tested else NOT_ASKED


def find_worst(by_subject: Mapping[str, Sequence[Finding]]) -> dict[str, dict[str, Severity]]:
    """The worst severity by subject and node; "" stands for findings that name no node."""
    worst: dict[str, dict[str, Severity]] = {subject: {} for subject in by_subject}
    for subject, findings in by_subject.items():
        for finding in findings:
            for owner, each in _walk_consequences(subject, finding, by_subject):
                for node in each.nodes or ("",):
                    worst[owner][node] = max(each.severity, worst[owner].get(node, each.severity))
    return worst


def _walk_consequences(subject: str, finding: Finding, subjects: Mapping[str, object]) -> Iterator[tuple[str, Finding]]:
    """The finding and its consequences, each with its subject: a consequence still counts for its own subject."""
    yield subject, finding
    for consequence in finding.consequences:
        prefix = consequence.code.partition("-")[0]
        yield from _walk_consequences(prefix if prefix in subjects else subject, consequence, subjects)
