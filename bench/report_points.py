"""What a report may draw, read from the files of a run without the report's own readers."""

import json
from base64 import b64decode
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Of a point: the kind of source (metrics, node or rank), which one, and the figure.
Curve = tuple[str, object, str]
Point = tuple[float, float]
RATES = ("sent", "received")
_MEANS = {"gpu": 0, "power": 3}
# Times are written with one or two digits.
_APART = 0.06
_UNKNOWN = 0xFFFF


class RecordedPoints:
    """Every point of a run's record, by curve; values as they are drawn, to six digits."""

    def __init__(self, run: Path) -> None:
        self._times: dict[Curve, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._extremes: dict[Curve, tuple[float, float]] = {}
        for line in _read_lines(run / "metrics.jsonl"):
            self._add_metrics(line)
        before: dict[str, Any] = {}
        for line in _read_lines(run / "samples.jsonl"):
            self._add_sample(line, before.get(line.get("node", "")))
            before[line.get("node", "")] = line

    def has(self, curve: Curve, at: float, value: float) -> bool:
        times = self._times[curve].get(f"{value:.6g}", [])
        place = bisect_left(times, at - _APART)
        return place < len(times) and times[place] <= at + _APART

    def list_missing_peaks(self, drawn: Mapping[Curve, Iterable[float]]) -> Iterator[str]:
        """The largest and smallest recorded values that are not drawn, of the curves that are."""
        for curve, values in drawn.items():
            shown = {f"{value:.6g}" for value in values}
            for value in self._extremes.get(curve, ()):
                if f"{value:.6g}" not in shown:
                    yield f"{curve}: {value}"

    def _add(self, curve: Curve, at: float, value: float | None) -> None:
        if value is None:
            return
        times = self._times[curve][f"{value:.6g}"]
        # Nodes send their own times, which are nearly in order.
        times.insert(bisect_left(times, at), at)
        low, high = self._extremes.get(curve, (value, value))
        self._extremes[curve] = min(low, value), max(high, value)

    def _add_metrics(self, line: dict[str, Any]) -> None:
        for name, value in line.get("figures", {}).items():
            self._add(("metrics", line["step"], name), line["at"], value)
            self._add(("metrics", "all", name), line["at"], value)

    def _add_sample(self, line: dict[str, Any], before: dict[str, Any] | None) -> None:
        if "figures" not in line:
            return
        node, at, name = line["figures"]["node"], line["at"], line["node"]
        for figure in ("load", "memory"):
            self._add(("node", name, figure), at, node.get(figure))
        for figure in RATES if before is not None else ():
            old, new = before["figures"]["node"].get(figure), node.get(figure)  # type: ignore[index]  # it is not None
            if old is not None and new is not None and new >= old and at > before["at"]:  # type: ignore[index]  # as above
                self._add(("node", name, figure), at, (new - old) / (at - before["at"]))  # type: ignore[index]  # as above
        gpus = node.get("gpus", [])
        for figure, place in _MEANS.items():
            self._add(("node", name, figure), at, _average([gpu[place] for gpu in gpus]))
        self._add(("node", name, "gpu_memory"), at, _average([gpu[1] / gpu[2] for gpu in gpus if gpu[2]]))
        self._add(("node", name, "temperature"), at, max((gpu[4] for gpu in gpus), default=None))
        for rank, figures in line["figures"]["children"].items():
            for figure in ("step", "step_seconds", "rss"):
                self._add(("rank", int(rank), figure), at, figures.get(figure))


def list_points(run: Mapping[str, Any]) -> Iterator[tuple[Curve, float, float]]:
    """Every point in the data of a page."""
    metrics = run["metrics"]
    for table in (metrics, *metrics["lost"], {**metrics["evaluations"], "columns": metrics["evaluations"]}):
        for name, values in table["columns"].items():
            for step, at, value in zip(table["step"], table["at"], values, strict=True):
                if value is not None and name not in ("step", "at"):
                    yield ("metrics", step, name), at, value
    for kind, key in (("node", "samples"), ("rank", "ranks")):
        for source in run[key]["series"]:
            for name, series in source["figures"].items():
                for at, value in zip(series["at"], series["value"], strict=True):
                    yield (kind, source[kind], name), at, value


def count_wrong_cells(run: Mapping[str, Any], path: Path) -> tuple[int, int]:
    """Of the heat map: its cells, and those that differ from the highest lateness of their ranks at their time."""
    page = run["lateness"]
    if not page["measured"]:
        return 0, 0
    cells = memoryview(b"".join(map(b64decode, page["cells"]))).cast("H")
    rows, columns, ranks = page["rows"], page["columns"], page["ranks"]
    wanted = [-1.0] * (rows * columns)
    for line in _read_lines(path / "lateness.jsonl"):
        stop = line["at"] - page["start"]
        first, last = (int(at / page["width"]) for at in (stop - line["seconds"], stop - 1e-6))
        late = dict(zip(line["ranks"], line["mean"], strict=True))
        for low, high in line["measured"]:
            for rank in range(low, high + 1):
                for column in range(max(0, first), min(columns - 1, last) + 1):
                    cell = rank * rows // ranks * columns + column
                    wanted[cell] = max(wanted[cell], late.get(rank, 0) * 1e-4)
    wrong = 0
    for cell, value in zip(cells, wanted, strict=True):
        is_known = cell != _UNKNOWN
        wrong += is_known != (value >= 0) or (is_known and abs(cell * page["unit"] - value) > page["unit"])
    return len(cells), wrong


def _average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open() as file:
            yield from map(json.loads, file)
