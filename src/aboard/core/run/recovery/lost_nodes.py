"""Decides whether a silent node is lost, by what other nodes observe when they connect to it."""

from collections.abc import Collection, Iterable

# A node is not lost before it was silent for this long, unless its lease is over.
LOST_SECONDS = 20.0
# So many other nodes must have tried in vain.
WITNESSES = 2

# Outcomes of a connection: nothing answered, and not tried. Any other means that the node's kernel answered.
_UNANSWERED = frozenset({"dropped", "rejected"})
_UNTRIED = frozenset({"unresolved", "untried"})


def judge_attempts(outcomes: Iterable[str], control: Iterable[str] = ()) -> bool | None:
    """Whether a node answered one that connected to its addresses; None if no connection was tried.

    `control` are the outcomes for a node that is well: who can't reach that either, because a firewall is between all
    nodes or the own link is broken, knows nothing.
    """
    reached = _find_answer(outcomes)
    return None if reached is False and _find_answer(control) is False else reached


def is_lost(silent: float, answers: Collection[bool | None], others: int) -> bool:
    """Whether a node that was `silent` for these seconds is lost.

    `answers` are what `judge_attempts` returned for nodes that tried to connect to it; `others` is the number of other
    nodes in the run. Where too few of them can be asked, the head's own connection may be at fault.
    """
    if silent < LOST_SECONDS or others == 0 or True in answers:
        return False
    return sum(answer is False for answer in answers) >= min(WITNESSES, others)


def _find_answer(outcomes: Iterable[str]) -> bool | None:
    tried = [outcome for outcome in outcomes if outcome not in _UNTRIED]
    return any(outcome not in _UNANSWERED for outcome in tried) if tried else None
