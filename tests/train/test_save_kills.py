"""Trainings that end while they save: at random moments, and at each call to the disk."""

from kills import kills
from power import boundaries


def test_kills_at_random_never_break_nor_lose_a_checkpoint() -> None:
    """Each of 40 killed trainings is followed by one that finds the last published step, every bit of it right."""
    toll = kills(40, seed=1)
    assert (toll.lost, toll.broken, toll.strange) == ([], [], [])
    assert toll.kills == 40
    assert toll.resumed >= 40
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
