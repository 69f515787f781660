"""Lengths of time, typed and told."""

import pytest

from aboard.core.text.durations import format_duration, format_latency, parse_duration
from aboard.diagnoses import InputError


def test_typed() -> None:
    """With a unit, alone or together."""
    assert parse_duration(" 90s ", where="--since") == 90
    assert parse_duration("1h30m", where="--since") == 5400
    assert parse_duration("1.5d", where="--since") == 129_600


@pytest.mark.parametrize("wrong", ["", "10", "m", "10x", "-5m", "1e3s"])
def test_no_length_of_time(wrong: str) -> None:
    """A bare number could be anything."""
    with pytest.raises(InputError):
        parse_duration(wrong, where="--since")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-0.2, "0.0 s"),
        (4.12, "4.1 s"),
        (9.97, "10 s"),
        (42.4, "42 s"),
        (59.6, "1 min"),
        (192, "3 min 12 s"),
        (7_500, "2 h 5 min"),
        (7_259, "2 h"),
        (273_600, "3 d 4 h"),
    ],
)
def test_span(seconds: float, said: str) -> None:
    """Two units at the most, and a clock that was set back is no time at all."""
    assert format_duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.000_012, "12 us"), (0.0031, "3.1 ms"), (0.35, "350.0 ms"), (2.5, "2.5 s")]
)
def test_moment(seconds: float, said: str) -> None:
    """In microseconds, milliseconds or seconds."""
    assert format_latency(seconds) == said
