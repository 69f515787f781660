"""The measurements of a run on disk: all of them at first, then thinned, so that the file stays bounded for weeks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aboard.lazy_dataclass import dataclass
from aboard.record.json_lines_journal import Journal, read_entries

LIMIT = 256 * 2**20
# Runs get stuck during start-up, so it is recorded completely unless the cluster is too large.
FIRST_SECONDS = 180.0
FIRST_LINES_A_SECOND = 100.0
LATER_SECONDS = 10.0
LATER_LINES_A_SECOND = 10.0
_MOST_STAGES = 12


@dataclass(frozen=True, kw_only=True)
class NodeMeasurement:
    """The measurements of one node and its children at one time."""

    node: str
    at: float
    figures: Mapping[str, Any]


class MeasurementLog:
    """One line per node and time. At the end, the latest line of each node is written, to record the final state."""

    def __init__(self, path: Path, limit: int = LIMIT, *, nodes: int = 1) -> None:
        """`nodes` is their expected number: each has an equal share of the limit, and none can use up another's."""
        self._journal = Journal(path)
        self._limit = limit
        self._nodes = nodes
        self._sizes: Counter[str] = Counter()
        # The measurements that were past the share of their node.
        self.past_limit: Counter[str] = Counter()
        # By node, since each sends its own times.
        self._began: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._latest: dict[str, NodeMeasurement] = {}

    @property
    def dropped(self) -> int:
        """Lines lost to a full disk, without those that were thinned out."""
        return self._journal.dropped

    def take(self, measurement: NodeMeasurement) -> None:
        began = self._began.setdefault(measurement.node, measurement.at)
        nodes = max(self._nodes, len(self._began))
        share = self._sizes[measurement.node] * nodes / max(1, self._limit)
        gap = choose_spacing(age=measurement.at - began, nodes=len(self._written), share=share)
        last = self._written.get(measurement.node)
        # Thinned long before: in a normal run it takes centuries to fill a share.
        self.past_limit[measurement.node] += gap is None
        # Measurements come about a second apart, so one that is almost due counts as due.
        if gap is None or (last is not None and measurement.at - last < gap - 0.5):
            self._latest[measurement.node] = measurement
        else:
            self._write(measurement)

    def close(self) -> None:
        for sample in list(self._latest.values()):
            self._write(sample)
        self._journal.close()

    def _write(self, measurement: NodeMeasurement) -> None:
        self._latest.pop(measurement.node, None)
        self._written[measurement.node] = measurement.at
        before = self._journal.size
        self._journal.append(
            {"at": round(measurement.at, 3), "node": measurement.node, "figures": dict(measurement.figures)}
        )
        self._sizes[measurement.node] += max(0, self._journal.size - before)


def choose_spacing(*, age: float, nodes: int, share: float) -> float | None:
    """The seconds between two lines of a node; None when the file is full.

    Each time that half of the remaining space is filled, the spacing grows fourfold, so each stage lasts twice as long
    as the one before.
    """
    later = max(LATER_SECONDS, nodes / LATER_LINES_A_SECOND)
    usual = nodes / FIRST_LINES_A_SECOND if age < FIRST_SECONDS else later
    stage = find_stage(share)
    return None if stage is None else usual * 4.0**stage


def find_stage(share: float) -> int | None:
    """How often half of the remaining space was filled, by the share of it that is in use; None when it is full."""
    stage = 0
    while share >= 1 - 0.5 ** (stage + 1):
        stage += 1
        if stage > _MOST_STAGES:
            return None
    return stage


def read_measurements(path: Path) -> Iterator[NodeMeasurement]:
    """The recorded measurements, in order."""
    for entry in read_entries(path):
        match entry:
            case {"node": str(node), "at": int() | float() as at, "figures": dict(figures)}:
                yield NodeMeasurement(node=node, at=float(at), figures=figures)
