"""The samples of nodes in a run's measurements: load, memory, network and GPUs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aboard.record.record_lines import RecordLines, as_number, as_text, is_number

# More than any node has.
_MOST_GPUS = 64
# The first figures of a sample, in its order.
_FIGURES = ("load", "memory", "memory_total", "throttled", "received", "sent")


class NodeSample(NamedTuple):
    """One node at one time. `memory` is the share in use; `received` and `sent` are bytes since the node booted.

    `gpu` (utilization in percent), `gpu_memory` (the share in use) and `power` (in watts) are means of its GPUs;
    `temperature` is that of the hottest, in °C. None is unknown.
    """

    at: float
    node: str
    load: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    throttled: float | None = None
    received: float | None = None
    sent: float | None = None
    gpus: int = 0
    gpu: float | None = None
    gpu_memory: float | None = None
    power: float | None = None
    temperature: float | None = None


def read_node_samples(path: Path) -> RecordLines[NodeSample]:
    """The samples of all nodes in the order of arrival, about every 10 s per node."""
    return RecordLines(path, _parse_sample, shorten=_drop_ranks)


def _drop_ranks(line: bytes) -> bytes:
    """Without the figures of ranks, which are most of a line. Inside of a JSON text, these quotes would be escaped."""
    node, ranks, _ = line.partition(b',"children":{')
    return node + b"}}" if ranks else line


def _parse_sample(entry: Mapping[str, Any]) -> NodeSample:
    raw = entry["figures"]["node"]
    rows = raw.get("gpus", ())[:_MOST_GPUS]
    figures = [value if is_number(value := raw.get(name)) else None for name in _FIGURES]
    gpus = _summarize_gpus(rows) if rows else [None] * 4
    return NodeSample._make([as_number(entry["at"]), as_text(entry["node"]), *figures, len(rows), *gpus])


def _summarize_gpus(rows: Sequence[Any]) -> list[float | None]:
    """A row is a GPU: utilization, memory used and in all, power, temperature; a wrong type raises."""
    used, memory, total, power, temperature = zip(*rows, strict=True)
    shares = [part / whole for part, whole in zip(memory, total, strict=True) if part is not None and whole]
    known = [value for value in temperature if value is not None]
    figures = (_average(used), _average(shares), _average(power), max(known) if known else None)
    return [None if value is None else as_number(value) for value in figures]


def _average(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None] if None in values else values
    return sum(known) / len(known) if known else None
