"""The samples of nodes in a run's measurements: load, memory, network and GPUs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aboard.lazy_dataclass import dataclass
from aboard.record.record_lines import RecordLines, as_number, as_text, select_figures

# More than any node has.
_MOST_GPUS = 64


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU: utilization in percent, memory in bytes, power in watts, temperature in °C; None is unknown."""

    utilization: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    power: float | None = None
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True)
class NodeSample:
    """One node at one time. `memory` is the share in use; `received` and `sent` are bytes since the node booted."""

    at: float
    node: str
    load: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    throttled: float | None = None
    received: float | None = None
    sent: float | None = None
    gpus: tuple[GpuSample, ...] = ()


def read_node_samples(path: Path) -> RecordLines[NodeSample]:
    """The samples of all nodes in the order of arrival, about every 10 s per node."""
    return RecordLines(path, _parse_sample)


def _parse_sample(entry: Mapping[str, Any]) -> NodeSample:
    raw = entry["figures"]["node"]
    figures = select_figures(raw)
    return NodeSample(
        at=as_number(entry["at"]),
        node=as_text(entry["node"]),
        gpus=tuple(_parse_gpu(row) for row in raw.get("gpus", ())[:_MOST_GPUS]),
        **{name: figures.get(name) for name in ("load", "memory", "memory_total", "throttled", "received", "sent")},
    )


def _parse_gpu(row: Any) -> GpuSample:
    used, memory, total, power, temperature = (None if value is None else as_number(value) for value in row)
    return GpuSample(utilization=used, memory_used=memory, memory_total=total, power=power, temperature=temperature)
