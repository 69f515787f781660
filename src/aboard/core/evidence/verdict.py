"""What a question about a run comes to: the cause first, and what was ruled out on the way."""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import TypeAlias

from aboard.core.evidence.run_evidence import Evidence
from aboard.diagnoses import Finding, Severity
from aboard.lazy_dataclass import dataclass

# How the codes begin of runs that go on, but slower than they did.
SLOW = "slow-"


class Confidence(IntEnum):
    """How sure a rule is: it saw the cause itself, or what only this cause does, or it is the likeliest of several."""

    LIKELY = 1
    STRONG = 2
    CERTAIN = 3


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What a rule holds to be the cause; `since` is when it began at the head's time, None where nobody can tell.

    Of the causes that have the same `explains`, if it is not empty, only the first is reported.
    """

    finding: Finding
    sure: Confidence
    since: float | None = None
    explains: str = ""


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """What it is not, and what shows that; or what could not be looked at."""

    what: str
    why: str


RuleResult: TypeAlias = Cause | RuledOut
VerdictRule: TypeAlias = Callable[[Evidence], Iterator[RuleResult]]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The answer: findings with the verdict first, what was ruled out, and the seconds that it took."""

    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    seconds: float = 0.0
    quiet: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayedJudgement:
    """What the evidence comes to now, and what was said of it then, by which version; "" where nobody knows that."""

    run: str
    why: Judgement
    then: tuple[Finding, ...] = ()
    version: str = ""

    @property
    def changed(self) -> bool:
        """Whether today's rules say something else than was said; a record in which nothing was said has no then."""
        first = self.why.findings[0] if self.why.findings else None
        return bool(self.then) and not is_same_verdict(self.then[0], first)


def is_same_verdict(one: Finding | None, other: Finding | None) -> bool:
    """Whether both say the same of the same nodes and ranks. Who is slow by how much changes from look to look."""
    return _get_key(one) == _get_key(other)


def order_causes(causes: Iterable[Cause]) -> list[Cause]:
    """What was seen itself before what was inferred; among equals, the earliest on the corrected clock.

    What is only worth knowing is no cause while there is one. Among equals in all of this, the order of rules decides.
    """
    found: dict[object, Cause] = {}
    for cause in sorted(causes, key=_get_sort_key):
        found.setdefault(cause.explains or id(cause), cause)
    return list(found.values())


def _get_key(finding: Finding | None) -> object:
    if finding is None or finding.code.startswith(SLOW):
        return finding and finding.code
    return finding.code, finding.nodes, finding.ranks


def _get_sort_key(cause: Cause) -> tuple[bool, int, float]:
    since = cause.since if cause.since is not None else float("inf")
    return cause.finding.severity is Severity.INFO, -cause.sure, since
