"""The marks of a stream: when which byte came, in bounded room."""

from hypothesis import given, strategies as st

from aboard.agent.supervisor.rank_output import CLOSE_SECONDS, SPAN_SECONDS, TIMES_LIMIT, ArrivalTimes


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1)), max_size=60))
def test_a_byte_has_the_time_at_which_it_came(parts: list[tuple[int, float]]) -> None:
    """To within what counts as one moment, and never later than it came."""
    marks, offset, wall = ArrivalTimes(5.0), 0, 5.0
    came = []
    for size, pause in parts:
        wall += pause
        marks.add(offset, wall)
        came += [(offset, wall), (offset + size - 1, wall)]
        offset += size
    for place, at in came:
        assert at - CLOSE_SECONDS <= marks.at(place) <= at


def test_what_came_later_goes_into_another_piece() -> None:
    """A piece ends where the bytes begin that came noticeably later."""
    marks = ArrivalTimes(0.0)
    for offset, wall in ((0, 1.0), (10, 1.05), (20, 1.2), (30, 9.0)):
        marks.add(offset, wall)
    assert SPAN_SECONDS == 0.1
    assert marks.until(0) == 20
    assert marks.until(12) == 20
    assert marks.until(25) == 30
    assert marks.until(30) is None


def test_a_clock_that_is_set_back_is_followed() -> None:
    """The bytes behind it have the new time, and a piece of their own."""
    marks = ArrivalTimes(100.0)
    marks.add(10, 40.0)
    assert (marks.at(0), marks.at(10), marks.until(0)) == (100.0, 40.0, 10)


def test_there_are_never_too_many() -> None:
    """A week of single lines: each is known to a part of the whole time, the newest exactly, and none too late."""
    marks = ArrivalTimes(0.0)
    for number in range(10 * TIMES_LIMIT):
        marks.add(number, float(number))
        assert len(marks._offsets) <= TIMES_LIMIT
    assert marks.at(10 * TIMES_LIMIT - 1) == 10 * TIMES_LIMIT - 1
    for number in range(0, 10 * TIMES_LIMIT, 777):
        assert 0 <= number - marks.at(number) <= 2 * 10 * TIMES_LIMIT / (TIMES_LIMIT / 2)


def test_what_was_dropped_is_forgotten() -> None:
    """What is left still knows its time."""
    marks = ArrivalTimes(0.0)
    for number in range(1, 10):
        marks.add(number * 10, float(number))
    marks.drop_before(55)
    assert len(marks._offsets) == 5
    assert (marks.at(55), marks.at(60)) == (5.0, 6.0)


def test_a_clock_that_jumps_to_and_fro_fills_nothing() -> None:
    """The limit holds whatever the clock does."""
    marks = ArrivalTimes(0.0)
    for number in range(3 * TIMES_LIMIT):
        marks.add(number, 1e6 * (number % 2) + number)
        assert len(marks._offsets) <= TIMES_LIMIT
