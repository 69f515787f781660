"""How often a run saves with `train.save_steps: auto`: a pure decision, from what saves cost and how often it fails."""

from collections.abc import Mapping
from dataclasses import asdict
from math import sqrt
from typing import Any

from aboard.core.decoding import try_decode
from aboard.core.text.durations import format_duration, format_latency
from aboard.lazy_dataclass import dataclass

# Before a run has failed: once a day, or as jobs on Meta's research clusters did, whichever is more often: 1,024 GPUs
# every 7.9 hours (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2025).
PRIOR_SECONDS = 86_400.0
PRIOR_RANK_SECONDS = 7.9 * 3600 * 1024
# That counts as this many failures: the run's own soon outweigh it.
PRIOR_FAILURES = 0.25
# Until a save has been measured, the next one comes soon.
FIRST_SECONDS = 60.0
LONGEST_SECONDS = 3600.0
# The key in a checkpoint's state.
_KEY = "save_cost"


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """The seconds that training waits for a save, and those until it is complete and copied; `stall` -1 is unknown."""

    stall: float = -1.0
    complete: float = 0.0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "SaveCost":
        """As an earlier attempt measured it, from a checkpoint's state."""
        return try_decode(cls, state.get(_KEY)) or cls()

    def content(self) -> dict[str, Any]:
        return {_KEY: asdict(self)}


@dataclass(frozen=True, kw_only=True)
class SaveInterval:
    """The seconds from one save to the next, and why."""

    seconds: float
    why: str


def estimate_failure_interval(*, ranks: int, seconds: float, failures: int) -> float:
    """The mean seconds between failures, after `seconds` of training in which there were so many."""
    prior = min(PRIOR_SECONDS, PRIOR_RANK_SECONDS / ranks)
    return (PRIOR_FAILURES * prior + seconds) / (PRIOR_FAILURES + failures)


def decide_save_interval(cost: SaveCost, failure_interval: float) -> SaveInterval:
    """Young's and Daly's: √(2 × stall × mean time between failures), within bounds."""
    if cost.stall < 0:
        return SaveInterval(seconds=max(FIRST_SECONDS, cost.complete), why="no save has been measured yet")
    best = sqrt(2 * cost.stall * failure_interval)
    why = (
        f"a save stalls training for {format_latency(cost.stall)}, a failure every {format_duration(failure_interval)}"
    )
    if cost.complete >= min(best, LONGEST_SECONDS):
        why = f"a save and its copy take {format_duration(cost.complete)}"
    elif best > LONGEST_SECONDS:
        why = f"{why}; {format_duration(LONGEST_SECONDS)} at most"
    return SaveInterval(seconds=max(cost.complete, min(best, LONGEST_SECONDS)), why=why)
