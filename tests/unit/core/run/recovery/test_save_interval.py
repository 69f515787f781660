"""`train.save_steps: auto`: the interval follows from what a save costs and how often the run fails."""

import json
import os
from math import sqrt
from pathlib import Path

import pytest

from aboard.core.run.recovery.save_interval import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    SaveCost,
    decide_save_interval,
    estimate_failure_interval,
)
from aboard.trainer.checkpoint.checkpoint_copies import measure_copying

DAY, HOUR = 86_400.0, 3600.0


@pytest.mark.parametrize(
    ("stall", "complete", "failures_every", "seconds", "why"),
    [
        (2.0, 9.0, 4 * HOUR, 240.0, "a save stalls training for 2.0 s, a failure every 4 h"),
        (0.05, 1.0, DAY, sqrt(0.1 * DAY), "a save stalls training for 50.0 ms, a failure every 1 d"),
        # Not below a save and its copy, even where that takes more than an hour.
        (2.0, 300.0, 4 * HOUR, 300.0, "a save and its copy take 5 min"),
        (600.0, 4000.0, 30 * DAY, 4000.0, "a save and its copy take 1 h 6 min"),
        # Not above an hour.
        (60.0, 60.0, 10 * DAY, LONGEST_SECONDS, "a save stalls training for 60.0 s, a failure every 10 d; 1 h at most"),
        # A save that costs nothing.
        (0.0, 1.5, DAY, 1.5, "a save and its copy take 1.5 s"),
        # The first one comes soon, but not before the last one is complete.
        (-1.0, 0.0, DAY, FIRST_SECONDS, "no save has been measured yet"),
        (-1.0, 500.0, DAY, 500.0, "no save has been measured yet"),
    ],
)
def test_the_interval_is_youngs_within_bounds(
    stall: float, complete: float, failures_every: float, seconds: float, why: str
) -> None:
    """√(2 × stall × mean time between failures); the reason names what decided."""
    found = decide_save_interval(SaveCost(stall=stall, complete=complete), failures_every)
    assert found.seconds == pytest.approx(seconds)
    assert found.why == why


def test_failures_of_the_run_soon_outweigh_what_is_assumed() -> None:
    """Once a day, or once in 7.9 h × 1,024 for each rank; after a few failures, only the run's own rate counts."""
    assert estimate_failure_interval(ranks=8, seconds=0, failures=0) == DAY
    assert estimate_failure_interval(ranks=8192, seconds=0, failures=0) == pytest.approx(7.9 * HOUR / 8)
    assert estimate_failure_interval(ranks=8, seconds=10 * DAY, failures=0) > 10 * DAY
    assert estimate_failure_interval(ranks=8, seconds=HOUR, failures=1) < 6 * HOUR
    assert estimate_failure_interval(ranks=8, seconds=3 * DAY, failures=36) == pytest.approx(2 * HOUR, rel=0.1)
    assert estimate_failure_interval(ranks=8192, seconds=3 * DAY, failures=36) == pytest.approx(2 * HOUR, rel=0.01)


def test_what_saves_cost_survives_a_restart() -> None:
    """In the checkpoint's state; a state without it, or with something else, knows nothing."""
    cost = SaveCost(stall=0.25, complete=31.5)
    assert SaveCost.of(json.loads(json.dumps(cost.content()))) == cost
    for state in ({}, {"save_cost": "x"}, {"save_cost": {"stall": "x"}}):
        assert SaveCost.of(state) == SaveCost()


def test_a_copy_is_measured_by_what_is_on_the_disk(tmp_path: Path) -> None:
    """From the marker to the record's last change; until then it takes at least twice the time that has passed."""

    def put(state: str, *, marker: float, record: float) -> float:
        for name, text, at in (("manifest.json", "", marker), ("copies.json", json.dumps({"state": state}), record)):
            (tmp_path / name).write_text(text)
            os.utime(tmp_path / name, (at, at))
        return measure_copying(tmp_path)

    assert measure_copying(tmp_path / "gone") == 0.0
    assert put("copied", marker=1000.0, record=1042.0) == 42.0
    assert put("full", marker=1000.0, record=1042.0) == 0.0
    assert put("waiting", marker=1000.0, record=999.0) == LONGEST_SECONDS
    assert put("copying", marker=4e9, record=1000.0) == 0.0
    (tmp_path / "copies.json").unlink()
    assert measure_copying(tmp_path) == 0.0
