"""When a keeper ends its ranks: a decision over times, without a clock."""

from __future__ import annotations


def compute_lease_deadline(last_contact: float, lost_at: float | None, seconds: float, beat: float) -> float:
    """The moment at which the lease is over.

    With a bridge lost, the lease runs from the loss. A network that drops silently shows no loss; the head's
    last word may then be a whole beat older than the cut, which must not be taken off the lease.
    """
    return (last_contact + beat if lost_at is None else lost_at) + seconds
