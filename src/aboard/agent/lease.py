"""When a keeper ends its ranks: a decision over times, without a clock."""

from __future__ import annotations


def deadline(heard: float, lost: float | None, seconds: float, beat: float) -> float:
    """The moment at which the lease is over.

    With a bridge lost, the lease runs from the loss. A network that drops silently shows no loss; the head's
    last word may then be a whole beat older than the cut, which must not be taken off the lease.
    """
    return (heard + beat if lost is None else lost) + seconds
