"""The samples of nodes in a run's measurements: load, memory, network and GPUs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aboard.lazy_dataclass import dataclass
from aboard.record.record_lines import RecordLines, as_number, as_text, is_number

# More than any node has.
_MOST_GPUS = 64
_FIGURES = ("load", "memory", "memory_total", "throttled", "received", "sent")


@dataclass(frozen=True, kw_only=True)
class NodeSample:
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
    figures = {name: value for name in _FIGURES if is_number(value := raw.get(name))}
    return NodeSample(
        at=as_number(entry["at"]),
        node=as_text(entry["node"]),
        gpus=len(rows),
        **figures,
        **(_summarize_gpus(rows) if rows else {}),
    )


def _summarize_gpus(rows: Sequence[Any]) -> dict[str, float | None]:
    """A row is a GPU: utilization, memory used and in all, power, temperature; a wrong type raises."""
    used, memory, total, power, temperature = zip(*rows, strict=True)
    shares = [part / whole for part, whole in zip(memory, total, strict=True) if part is not None and whole]
    hottest = max((value for value in temperature if value is not None), default=None)
    figures = {"gpu": _average(used), "gpu_memory": _average(shares), "power": _average(power), "temperature": hottest}
    return {name: None if value is None else as_number(value) for name, value in figures.items()}


def _average(values: Iterable[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
