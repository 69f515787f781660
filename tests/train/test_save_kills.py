"""Trainings that end while they save: at random moments, and at each call to the disk."""

import pytest
from kills import kills
from power import boundaries


@pytest.mark.parametrize("count", [12, pytest.param(40, marks=pytest.mark.nightly)])
def test_kills_at_random_never_break_nor_lose_a_checkpoint(count: int) -> None:
    """Each killed training is followed by one that finds the last published step, every bit of it right."""
    toll = kills(count, seed=1)
    assert (toll.lost, toll.broken, toll.strange) == ([], [], [])
    assert toll.kills == count
    assert toll.resumed >= count
    assert toll.torn > 0


def test_kills_of_two_ranks_leave_no_half_checkpoint() -> None:
    """A checkpoint of two ranks is there with all files of both, or not at all, whichever of them dies first."""
    toll = kills(4, ranks=2, seed=2)
    assert (toll.lost, toll.broken, toll.strange) == ([], [], [])


def test_an_end_at_any_call_leaves_the_last_good_one() -> None:
    """Killed, or without power, at each write, sync, rename and removal of a save: what was published is sound."""
    ended = boundaries()
    assert ended.wrong == []
    assert ended.ends > 100
    assert ended.published > 0
