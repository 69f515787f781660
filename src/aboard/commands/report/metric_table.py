"""The metrics of a run as columns to draw: steps of the last attempt as the curve, repeated ones aside."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from math import inf

from aboard.commands.report.page_data import Curve, Evaluations, Ledger, Metrics
from aboard.commands.report.run_timeline import Spell
from aboard.commands.report.thin_series import choose_rows, round_number
from aboard.lazy_dataclass import dataclass
from aboard.record.metrics_log import MetricsLine

# The curves of a page, in order.
COLUMNS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "memory", "mfu", "step_seconds")
_BUCKETS = 450
_LOST_BUCKETS = 30
_MOST_LOST = 40
_MOST_EVALUATIONS = 600
_LEDGER_BUCKETS = 200
# What a step consists of; the classes of a whole run are those of its ledger.
STEP_KINDS = (
    "forward_backward", "communication", "optimizer", "data", "checkpoint", "evaluation", "compile", "other",
)  # fmt: skip


@dataclass(kw_only=True)
class MetricTable:
    """Every line of a run's metrics, by kind, in columns."""

    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    evaluations: list[tuple[int, float, float, int]] = field(default_factory=list)
    nonfinite: list[tuple[int, float]] = field(default_factory=list)
    # When a line was logged, and the seconds of each class since the one before.
    windows: list[tuple[float, Mapping[str, float | None]]] = field(default_factory=list)
    total_steps: int | None = None

    def add(self, line: MetricsLine) -> None:
        if line.kind == "evaluation":
            loss = line.figures.get("eval_loss")
            if loss is not None:
                self.evaluations.append((line.step, line.at, loss, line.generation))
            return
        if line.kind != "log":
            return
        self.steps.append(line.step)
        self.times.append(line.at)
        self.generations.append(line.generation)
        for name, column in self.columns.items():
            column.append(line.figures.get(name))
        if line.figures.get("loss") is None:
            self.nonfinite.append((line.step, line.at))
        self.windows.append((line.at, line.seconds))
        steps = line.figures.get("steps")
        self.total_steps = int(steps) if steps else self.total_steps


def collect_metrics(lines: Iterable[MetricsLine]) -> MetricTable:
    table = MetricTable()
    for line in lines:
        table.add(line)
    return table


def describe_metrics(table: MetricTable) -> Metrics:
    """The columns, thinned: `live` has each step once, `lost` the steps that a later attempt repeated."""
    live, lost = _separate_lost(table)
    segments: dict[int, list[int]] = {}
    for row in lost:
        segments.setdefault(table.generations[row], []).append(row)
    chosen = _thin_rows(table, live, _BUCKETS)
    return {
        **_take_rows(table, chosen),
        "rows": len(table.steps),
        "lost": [
            {**_take_rows(table, _thin_rows(table, rows, _LOST_BUCKETS)), "attempt": generation}
            for generation, rows in list(segments.items())[-_MOST_LOST:]
        ],
        "evaluations": _describe_evaluations(table),
        "total_steps": table.total_steps,
    }


def _separate_lost(table: MetricTable) -> tuple[list[int], list[int]]:
    """The rows of steps that no later attempt repeated, and the others."""
    live: list[int] = []
    lost: list[int] = []
    later, newest, generation = inf, inf, inf
    for row in range(len(table.steps) - 1, -1, -1):
        if table.generations[row] < generation:
            later, generation = min(later, newest), table.generations[row]
        newest = min(newest, table.steps[row])
        (lost if table.steps[row] >= later else live).append(row)
    return live[::-1], lost[::-1]


def _thin_rows(table: MetricTable, rows: Sequence[int], buckets: int) -> list[int]:
    columns = [[column[row] for row in rows] for column in table.columns.values()]
    used = [column for column in columns if any(value is not None for value in column)]
    return [rows[place] for place in choose_rows(used or columns, buckets=buckets)]


def _take_rows(table: MetricTable, rows: Sequence[int]) -> Curve:
    columns = {name: tuple(round_number(column[row]) for row in rows) for name, column in table.columns.items()}
    return {
        "step": tuple(table.steps[row] for row in rows),
        "at": tuple(round(table.times[row], 2) for row in rows),
        "generation": tuple(table.generations[row] for row in rows),
        "columns": {name: values for name, values in columns.items() if any(value is not None for value in values)},
    }


def _describe_evaluations(table: MetricTable) -> Evaluations:
    """Those of steps that no later attempt trained again, thinned."""
    begins = dict(zip(reversed(table.generations), reversed(table.steps), strict=True))
    live = [each for each in table.evaluations if all(each[0] < at for later, at in begins.items() if later > each[3])]
    rows = choose_rows([[loss for _, _, loss, _ in live]], buckets=_MOST_EVALUATIONS // 2)
    chosen = [live[row] for row in rows]
    return {
        "step": tuple(step for step, _, _, _ in chosen),
        "at": tuple(round(at, 2) for _, at, _, _ in chosen),
        "generation": tuple(generation for _, _, _, generation in chosen),
        "eval_loss": tuple(round_number(loss) for _, _, loss, _ in chosen),
    }


def describe_ledger(spells: Sequence[Spell], table: MetricTable) -> Ledger:
    """Where the time went: seconds of each class in all and in each bucket of time; both add up to the wall time.

    Time of steps is divided further by the trainer's own ledger, as far as that accounts for it.
    """
    if not spells:
        return {}
    start, stop = spells[0].start, spells[-1].stop
    width = max(1e-6, stop - start) / _LEDGER_BUCKETS
    buckets: list[dict[str, float]] = [{} for _ in range(_LEDGER_BUCKETS)]
    for spell in spells:
        _spread(buckets, {spell.kind: spell.stop - spell.start}, spell.start - start, spell.stop - start, width)
    inner: list[dict[str, float]] = [{} for _ in range(_LEDGER_BUCKETS)]
    before = start
    for at, seconds in table.windows:
        spent = {kind: value for kind, value in seconds.items() if value and kind in STEP_KINDS}
        whole = sum(spent.values())
        since = max(before, at - whole)
        _spread(inner, spent, since - start, max(since, at) - start, width)
        before = max(before, at)
    for bucket, parts in zip(buckets, inner, strict=True):
        _divide_steps(bucket, parts)
    kinds = sorted({kind for bucket in buckets for kind in bucket})
    return {
        "start": round(start, 3),
        "width": width,
        "wall": round(stop - start, 3),
        "total": {kind: round(sum(bucket.get(kind, 0.0) for bucket in buckets), 3) for kind in kinds},
        "over": {kind: tuple(round(bucket.get(kind, 0.0), 3) for bucket in buckets) for kind in kinds},
        "divided": bool(table.windows),
    }


def _spread(
    buckets: list[dict[str, float]], spent: Mapping[str, float], start: float, stop: float, width: float
) -> None:
    """Adds the seconds of each class to the buckets between two times, evenly."""
    last = len(buckets) - 1
    first, final = (min(last, max(0, int(at / width))) for at in (start, stop))
    if first == final or stop <= start:
        for kind, seconds in spent.items():
            buckets[final][kind] = buckets[final].get(kind, 0.0) + seconds
        return
    for number in range(first, final + 1):
        shared = min(stop, (number + 1) * width) - max(start, number * width)
        if shared > 0:
            for kind, seconds in spent.items():
                buckets[number][kind] = buckets[number].get(kind, 0.0) + seconds * shared / (stop - start)


def _divide_steps(bucket: dict[str, float], parts: Mapping[str, float]) -> None:
    """Divides the time of steps in one bucket by its parts; what they don't account for remains `steps`."""
    steps, known = bucket.pop("steps", 0.0), sum(parts.values())
    # A line is logged after the steps that it describes, so that its parts may reach into another bucket.
    scale = min(1.0, steps / known) if known else 0.0
    for kind, value in parts.items():
        bucket[kind] = bucket.get(kind, 0.0) + value * scale
    rest = steps - known * scale
    if rest > 0:
        bucket["steps"] = rest
