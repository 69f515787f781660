"""The lines of the trainer's metrics.jsonl on the head, of all generations of a run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from aboard.core.decoding import DecodeError, decode_with, parse_json
from aboard.lazy_dataclass import dataclass
from aboard.record.json_lines_journal import Journal
from aboard.record.measurement_log import find_stage
from aboard.record.record_lines import RecordLines, as_count, as_number, select_figures

LIMIT = 64 * 2**20
_LINE_BYTES = 64 * 1024
# Ample for losses and times; half as long as all digits.
_DIGITS = 7


@dataclass(frozen=True, kw_only=True)
class MetricsLine:
    """One line of the trainer; None is a figure that was not measured or not finite.

    `seconds` is the time ledger: since the line before, or in total in the line that ends a generation.
    """

    at: float
    generation: int
    step: int
    figures: Mapping[str, float | None] = field(default_factory=dict)
    seconds: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """`evaluation`, `end` (of a generation that ended in order) or `log`."""
        return "evaluation" if "eval_loss" in self.figures else "end" if "wall" in self.figures else "log"


class MetricsLog:
    """Writes all lines at first; as the space fills up, one log line in 4, 16, … The thinned ones count as dropped."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self._journal = Journal(path)
        self._limit = limit
        self._thinned = 0
        # The time ledger of lines that were thinned out.
        self._seconds: Counter[str] = Counter()
        self._partial = b""
        self._generation = 0
        self.past_limit = 0

    @property
    def dropped(self) -> int:
        """Lines lost to a full disk."""
        return self._journal.dropped

    def feed(self, data: bytes, at: float, generation: int, *, dropped: int = 0) -> None:
        """Takes a part of the trainer's lines, which rank 0's node sent; before it, `dropped` bytes are missing."""
        if dropped or generation != self._generation:
            self._thinned += bool(dropped)
            self._partial = b""
        self._generation = generation
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[-_LINE_BYTES:]
        for raw in lines:
            try:
                line = decode_with(lambda raw: _parse_trainer_line(raw, at, generation), raw)
            except DecodeError:
                self._thinned += 1
            else:
                self.take(line)

    def take(self, line: MetricsLine) -> None:
        stage = find_stage(self._journal.size / self._limit)
        if stage is None or (line.kind == "log" and self._thinned + 1 < 4**stage):
            self._thinned += 1
            self.past_limit += stage is None
            self._seconds.update({kind: spent for kind, spent in line.seconds.items() if spent is not None})
            return
        if self._thinned:
            self._journal.append({"dropped": self._thinned})
            self._thinned = 0
        seconds = dict(line.seconds)
        if line.kind == "log":
            seconds |= {kind: spent + (seconds.get(kind) or 0.0) for kind, spent in self._seconds.items()}
            self._seconds.clear()
        self._journal.append({
            "at": round(line.at, 3),
            "generation": line.generation,
            "step": line.step,
            "figures": _round_figures(line.figures),
            "seconds": _round_figures(seconds),
        })  # fmt: skip

    def close(self) -> None:
        if self._thinned:
            self._journal.append({"dropped": self._thinned})
        self._journal.close()


def read_metrics(path: Path) -> RecordLines[MetricsLine]:
    """The lines in the order of arrival: steps that were repeated after a restart come again."""
    return RecordLines(path, _parse_line)


def _parse_line(entry: Mapping[str, Any]) -> MetricsLine:
    return MetricsLine(
        at=as_number(entry["at"]),
        generation=as_count(entry["generation"]),
        step=as_count(entry["step"]),
        figures=select_figures(entry["figures"]),
        seconds=select_figures(entry["seconds"]),
    )


def _parse_trainer_line(raw: bytes, at: float, generation: int) -> MetricsLine:
    entry = parse_json(raw)
    figures = select_figures(entry)
    step = as_count(entry["step"])
    for name in ("step", "time", "generation"):
        figures.pop(name, None)
    return MetricsLine(
        at=at, generation=generation, step=step, figures=figures, seconds=select_figures(entry.get("seconds"))
    )


def _round_figures(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value for name, value in figures.items()
    }
