"""What nodes reported over time: one pass over the samples, thinned while it reads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from statistics import median

from aboard.commands.report.page_data import Charts, Series
from aboard.commands.report.thin_series import choose_rows, round_number
from aboard.core.text.byte_sizes import format_size
from aboard.lazy_dataclass import dataclass
from aboard.record.node_samples import NodeSample

# The figures of a node, in the order of their charts.
FIGURES = ("load", "memory", "sent", "received", "gpu", "gpu_memory", "power", "temperature")
# Points of all nodes and figures together, which keeps the page small.
_MOST_POINTS = 90_000
_LEAST_BUCKETS, _MOST_BUCKETS = 30, 300
_MOST_NODES, _PAIR = 512, 2
# How far a node's median must be from the median of all nodes to be named.
_DIFFERENT = {"load": 2.0, "memory": 1.3, "sent": 2.0, "received": 2.0, "gpu": 1.3, "power": 1.3, "temperature": 1.2}
_SMALLEST = {"load": 1.0, "memory": 0.05, "sent": 1e6, "received": 1e6, "gpu": 10.0, "power": 30.0, "temperature": 10.0}
_WORDS = {
    "load": "load", "memory": "memory used", "sent": "network sent", "received": "network received",
    "gpu": "GPU utilization", "gpu_memory": "GPU memory", "power": "GPU power", "temperature": "GPU temperature",
}  # fmt: skip


@dataclass(kw_only=True)
class NodeSeries:
    """The samples of one node, in columns; a rate is of the time since the sample before."""

    times: list[float] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in FIGURES})
    memory_total: float | None = None
    gpus: int = 0
    _last: NodeSample | None = None

    def add(self, sample: NodeSample) -> None:
        last, self._last = self._last or sample, sample
        self.memory_total = sample.memory_total or self.memory_total
        self.gpus = max(self.gpus, sample.gpus)
        self.times.append(sample.at)
        elapsed = sample.at - last.at
        sent = _compute_rate(last.sent, sample.sent, elapsed)
        received = _compute_rate(last.received, sample.received, elapsed)
        gpu = (sample.gpu, sample.gpu_memory, sample.power, sample.temperature)
        for column, value in zip(
            self.columns.values(), (sample.load, sample.memory, sent, received, *gpu), strict=True
        ):
            column.append(value)


def collect_node_series(samples: Iterable[NodeSample]) -> dict[str, NodeSeries]:
    found: dict[str, NodeSeries] = {}
    for sample in samples:
        if sample.node in found or len(found) < _MOST_NODES:
            found.setdefault(sample.node, NodeSeries()).add(sample)
    return found


def describe_nodes(series: Mapping[str, NodeSeries]) -> Charts:
    """The thinned series of each node, and in words what differs between nodes."""
    used = [
        name for name in FIGURES if any(value is not None for each in series.values() for value in each.columns[name])
    ]
    room = _MOST_POINTS // max(1, len(series) * max(1, len(used)))
    buckets = max(_LEAST_BUCKETS, min(_MOST_BUCKETS, room // 2))
    return {
        "figures": used,
        "series": [
            {"node": node, "figures": {name: _thin(each, name, buckets) for name in used}}
            for node, each in series.items()
        ],
        "differences": _describe_differences(series, used),
    }


def _thin(series: NodeSeries, name: str, buckets: int) -> Series:
    column = series.columns[name]
    known = [row for row, value in enumerate(column) if value is not None]
    rows = [known[place] for place in choose_rows([[column[row] for row in known]], buckets=buckets)]
    return {
        "at": tuple(round(series.times[row], 1) for row in rows),
        "value": tuple(round_number(column[row]) for row in rows),
    }


def _describe_differences(series: Mapping[str, NodeSeries], used: Sequence[str]) -> list[str]:
    """In one line each: the nodes whose median is far from that of all."""
    said = []
    for name in used:
        medians = {
            node: middle for node, each in series.items() if (middle := _find_median(each.columns[name])) is not None
        }
        if len(medians) == _PAIR:
            (one, low), (other, high) = sorted(medians.items(), key=lambda each: each[1])
            if high - low >= _SMALLEST.get(name, 0.1) and high > low * _DIFFERENT.get(name, 1.5):
                said.append(f"{_WORDS[name]}: {_format(name, low)} on {one}, {_format(name, high)} on {other}")
            continue
        usual = median(medians.values()) if medians else 0.0
        for node, middle in medians.items():
            factor = _DIFFERENT.get(name, 1.5)
            apart = abs(middle - usual) >= _SMALLEST.get(name, 0.1)
            if apart and (middle > usual * factor or middle * factor < usual):
                values = f"{_format(name, middle)}, where half of the nodes have {_format(name, usual)} or less"
                said.append(f"{node}: {_WORDS[name]} {values}")
    totals = {node: format_size(each.memory_total) for node, each in series.items() if each.memory_total}
    counts = {node: str(each.gpus) for node, each in series.items()}
    said += [
        line for what, values in (("memory", totals), ("GPUs", counts)) if (line := _describe_groups(what, values))
    ]
    return said[:40]


def _describe_groups(what: str, values: Mapping[str, str]) -> str:
    """The nodes by their value, the most common first; nothing if it is the same on all."""
    groups: dict[str, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    parts = sorted(groups.items(), key=lambda part: -len(part[1]))
    return (
        f"{what}: " + "; ".join(f"{value} on {_name_nodes(nodes)}" for value, nodes in parts) if len(parts) > 1 else ""
    )


def _name_nodes(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= 4 else f"{len(nodes)} nodes"  # noqa: PLR2004 - what fits in a line


def _find_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _format(name: str, value: float) -> str:
    if name in ("memory", "gpu_memory"):
        return f"{value:.0%}"
    if name in ("sent", "received"):
        return f"{format_size(value)}/s"
    return f"{value:.1f}{ {'gpu': ' %', 'power': ' W', 'temperature': ' °C'}.get(name, '') }"


def _compute_rate(old: float | None, new: float | None, elapsed: float) -> float | None:
    return None if old is None or new is None or new < old or elapsed <= 0 else (new - old) / elapsed
