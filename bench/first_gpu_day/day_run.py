"""A run of the day: declared as an object, recorded as an outcome, and dropped when time is short."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from aboard.durable_files import write_atomically

if TYPE_CHECKING:
    from first_gpu_day.gpu_day import GpuDay

State = Literal["as expected", "differs", "failed", "not run"]
Figure = float | str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run showed, in one sentence and in figures; `texts` are raw outputs, by name."""

    state: State
    seen: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DayRun:
    """One run of the day.

    `drop` is 0 for runs that are dropped last, and higher for those that are dropped earlier. `needs` names the runs
    whose results it uses. `question` is asked before it starts.
    """

    name: str
    minutes: float
    drop: int
    proves: str
    perform: Callable[["GpuDay"], Outcome]
    needs: tuple[str, ...] = ()
    question: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a run as it is kept on disk."""

    name: str
    state: State
    seen: str
    seconds: float
    at: float
    figures: Mapping[str, Figure]
    texts: Mapping[str, str]

    @property
    def useful(self) -> bool:
        """Whether runs that need its result can start."""
        return self.state in ("as expected", "differs")


def choose_runs(runs: Sequence[DayRun], done: Collection[str], minutes: float) -> tuple[list[DayRun], list[DayRun]]:
    """The runs still to do that fit into the minutes, in their order, and the dropped ones in the order of dropping.

    Of those with the highest `drop`, the last goes first; a run goes with what it needs.
    """
    kept, dropped = [run for run in runs if run.name not in done], []
    while kept and sum(run.minutes for run in kept) > minutes:
        first = max(enumerate(kept), key=lambda each: (each[1].drop, each[0]))[1]
        lost = {first.name}
        for run in kept:
            if lost.intersection(run.needs):
                lost.add(run.name)
        dropped += [run for run in reversed(kept) if run.name in lost]
        kept = [run for run in kept if run.name not in lost]
    return kept, dropped


def save_result(folder: Path, result: Result) -> None:
    """Writes the result so that it is there as a whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{result.name}.json", json.dumps(asdict(result), indent=1).encode(), sync=False)


def load_results(folder: Path, runs: Sequence[DayRun]) -> dict[str, Result]:
    """The results that an earlier start of the script has left; one that can't be read is missing."""
    found = {}
    for run in runs:
        try:
            read: dict[str, Any] = json.loads((folder / f"{run.name}.json").read_text("utf-8"))
            result = Result(**read)
        except (OSError, ValueError, TypeError):
            continue
        if result.name == run.name and result.state in get_args(State):
            found[run.name] = result
    return found
