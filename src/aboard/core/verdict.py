"""What a question about a run comes to: the cause first, and what was ruled out on the way."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from aboard.core.evidence import Evidence
from aboard.core.finding import Finding, Severity


class Sure(IntEnum):
    """How sure a rule is: it saw the cause itself, or what only this cause does, or it is the likeliest of several."""

    LIKELY = 1
    STRONG = 2
    CERTAIN = 3


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What a rule holds to be the cause; `since` is when it began at the head's time, None where nobody can tell."""

    finding: Finding
    sure: Sure
    since: float | None = None


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """What it is not, and what shows that; or what could not be looked at."""

    what: str
    why: str


Said: TypeAlias = Cause | RuledOut
VerdictRule: TypeAlias = Callable[[Evidence], Iterator[Said]]


@dataclass(frozen=True, kw_only=True)
class Why:
    """The answer: findings with the verdict first, what was ruled out, and the seconds that it took."""

    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    seconds: float = 0.0
    quiet: float | None = None


def first_cause(causes: Iterable[Cause]) -> list[Cause]:
    """What was seen itself before what was inferred; among equals, the earliest on the corrected clock.

    What is only worth knowing is no cause while there is one.
    """
    return sorted(causes, key=_order)


def _order(cause: Cause) -> tuple[bool, int, float]:
    since = cause.since if cause.since is not None else float("inf")
    return cause.finding.severity is Severity.INFO, -cause.sure, since
