"""The result of diagnosing a run: the cause first, and what was ruled out."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from aboard.core.evidence.run_evidence import Evidence
from aboard.diagnoses import Cause, Finding, Severity
from aboard.lazy_dataclass import dataclass

# The prefix of the codes of runs that still progress, but slower than before.
SLOW = "slow-"
_HANG = ("hang-", "init-")


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """A cause that was ruled out, with the evidence; or one that was not tested."""

    what: str
    why: str


RuleResult: TypeAlias = Cause | RuledOut
VerdictRule: TypeAlias = Callable[[Evidence], Iterator[RuleResult]]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The findings with the verdict first, what was ruled out, and the seconds that it took.

    Of a live run, `progress` says how far it is, and `advancing` whether it makes progress as usual.
    """

    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    seconds: float = 0.0
    quiet: float | None = None
    progress: str = ""
    advancing: bool = False


@dataclass(frozen=True, kw_only=True)
class ReplayedJudgement:
    """The judgement of recorded evidence now, and the one from back then with its version; "" if unknown."""

    run: str
    why: Judgement
    then: tuple[Finding, ...] = ()
    version: str = ""

    @property
    def changed(self) -> bool:
        """Whether today's rules give another verdict; never true if the record has no earlier one."""
        first = self.why.findings[0] if self.why.findings else None
        return bool(self.then) and not is_same_verdict(self.then[0], first)


def is_same_verdict(one: Finding | None, other: Finding | None) -> bool:
    """Whether both have the same code, nodes and ranks; of slow runs only the code, since the slowest rank varies."""
    return _get_key(one) == _get_key(other)


def is_hang(finding: Finding) -> bool:
    """Whether it says that ranks wait for each other, in the training or before it."""
    return finding.code.startswith(_HANG)


def order_causes(causes: Iterable[Cause]) -> list[Cause]:
    """Observed causes before inferred ones; among equals, the earliest by corrected time.

    Notes are causes only if there are no others. Among equals, the order of rules decides.
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
    return cause.severity is Severity.INFO, -cause.sure, since
