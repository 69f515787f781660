"""When a lease is over, and which leases can be kept."""

import pytest

from aboard.agent.supervisor.supervisor import compute_lease_deadline
from aboard.core.run.lease import Lease


def test_a_lost_bridge_starts_the_lease() -> None:
    """From the loss on, whenever the last word was."""
    assert compute_lease_deadline(last_contact=100.0, lost_at=110.0, seconds=20.0, beat=2.0) == 130.0


def test_silence_on_an_open_bridge_gives_the_beat_on_top() -> None:
    """The cut may have come right before the next beat: that beat isn't taken off the lease."""
    assert compute_lease_deadline(last_contact=100.0, lost_at=None, seconds=20.0, beat=2.0) == 122.0


@pytest.mark.parametrize(
    ("seconds", "beat", "grace"),
    [(20.0, 0.0, 5.0), (20.0, 11.0, 5.0), (20.0, -1.0, 5.0), (20.0, 2.0, -1.0), (float("nan"), 2.0, 5.0)],
)
def test_a_lease_that_can_not_be_kept_is_refused(seconds: float, beat: float, grace: float) -> None:
    """A beat must fit twice, so that one that is lost doesn't end a run."""
    with pytest.raises(ValueError, match=r"s$"):
        Lease(seconds=seconds, beat=beat, grace=grace)


def test_the_usual_lease_can_be_kept() -> None:
    """The defaults are a lease."""
    assert Lease().seconds == 20.0
