"""A finding: one occurrence of a diagnosis."""

from aboard.diagnoses.diagnosis import Severity
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was observed, where, why it matters, and what to type; the same before a launch and after a crash.

    `about` names what it is about beyond its nodes, as `pid 4711` or `NCCL_PROTO`: what two findings share shows which
    of them explains the other.
    """

    code: str
    severity: Severity
    nodes: tuple[str, ...]
    seen: str
    why: str
    fix: str
    ranks: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    consequences: tuple["Finding", ...] = ()


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Orders by severity, keeping the order in which rules spoke within one."""
    return sorted(findings, key=lambda finding: -finding.severity)
