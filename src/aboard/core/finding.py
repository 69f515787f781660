"""A finding: what is wrong, where, why it matters, and the command that mends it."""

from enum import IntEnum

from aboard.core.lazy import dataclass


class Severity(IntEnum):
    """`BLOCK` stops a launch, `WARN` doesn't, `INFO` is worth a line."""

    INFO = 1
    WARN = 2
    BLOCK = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One judgement, drawn the same way before a launch and after a crash.

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
