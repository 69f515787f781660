"""The progress of a preparation, from the reports of its workers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.tokenize_workers.encoded_unit import UnitRecord
from aboard.trainer.data.tokenize_workers.preparation_schedule import PreparationSchedule
from aboard.trainer.data.tokenize_workers.worker_process import EncodeOrder, WorkerOrder, WorkerProgress


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeProgress:
    """The progress of a preparation, including results of an earlier one."""

    bytes: int
    of_bytes: int
    rows: int
    tokens: int


class ProgressCounter:
    """Adds up reports of workers; the final counts of a unit replace its earlier reports."""

    def __init__(
        self, schedule: PreparationSchedule, units: Sequence[EncodeOrder], progress: Callable[[TokenizeProgress], None]
    ) -> None:
        self._progress = progress
        self._of_bytes = sum(unit.chunk.size for unit in units)
        self._bytes = self._rows = self._tokens = 0
        self._on_the_way: dict[Path, WorkerProgress] = {}
        for unit in units:
            if unit.path in schedule.records:
                self._add(unit, schedule.records[unit.path])
        self._tell()

    def add_report(self, order: WorkerOrder, progress: WorkerProgress) -> None:
        if isinstance(order, EncodeOrder):
            self._on_the_way[order.path] = progress
            self._tell()

    def finish_unit(self, order: EncodeOrder, record: UnitRecord) -> None:
        self._on_the_way.pop(order.path, None)
        self._add(order, record)
        self._tell()

    def _add(self, order: EncodeOrder, record: UnitRecord) -> None:
        self._bytes += order.chunk.size
        self._rows += record.rows
        self._tokens += record.tokens

    def _tell(self) -> None:
        self._progress(
            TokenizeProgress(
                bytes=self._bytes,
                of_bytes=self._of_bytes,
                rows=self._rows + sum(progress.rows for progress in self._on_the_way.values()),
                tokens=self._tokens + sum(progress.tokens for progress in self._on_the_way.values()),
            )
        )
