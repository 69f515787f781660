"""Schedules the rest of a preparation: shards as soon as possible, else the next unit."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from aboard.trainer.data.store.shard_manifest import Shard
from aboard.trainer.data.tokenize_workers.encoded_unit import UnitRecord
from aboard.trainer.data.tokenize_workers.shard_assembly import DamagedUnitError
from aboard.trainer.data.tokenize_workers.worker_process import AssembleOrder, EncodeOrder, WorkerOrder

# A unit that is damaged repeatedly means a faulty disk.
_MAX_TRIES = 3


class PreparationSchedule:
    """Pure: records what was done, and returns what comes next."""

    def __init__(self, units: Sequence[EncodeOrder], shards: Sequence[AssembleOrder]) -> None:
        self._units = {unit.path: unit for unit in units}
        self._shard_of = {path: shard for shard in shards for path in shard.units}
        self._waiting = {shard.number: set(shard.units) for shard in shards}
        self._encode = deque(units)
        self._assemble: deque[AssembleOrder] = deque()
        self._tries = 0
        self.records: dict[Path, UnitRecord] = {}
        self.shards: dict[int, Shard] = {}

    @property
    def done(self) -> bool:
        return len(self.shards) == len(self._waiting)

    def skip_existing(self, records: Mapping[Path, UnitRecord], shards: Mapping[int, Shard]) -> None:
        """Results of an earlier preparation: these are not made again."""
        self.records.update(records)
        self.shards.update(shards)
        self._encode = deque(unit for unit in self._encode if unit.path not in records)
        for path in records:
            self._ready(path)

    def next(self) -> WorkerOrder | None:
        """The next order; None also while others are still at work."""
        if self._assemble:
            return self._assemble.popleft()
        return self._encode.popleft() if self._encode else None

    def add_unit(self, order: EncodeOrder, record: UnitRecord) -> None:
        self.records[order.path] = record
        self._ready(order.path)

    def add_shard(self, order: AssembleOrder, shard: Shard) -> None:
        self.shards[order.number] = shard

    def retry_unit(self, damaged: DamagedUnitError) -> bool:
        """Makes the unit again, and its shard after it; False after too many attempts."""
        self._tries += 1
        shard = self._shard_of[damaged.unit]
        self._waiting[shard.number].add(damaged.unit)
        self._encode.appendleft(self._units[damaged.unit])
        return self._tries <= _MAX_TRIES * len(self._units)

    def _ready(self, path: Path) -> None:
        shard = self._shard_of[path]
        waiting = self._waiting[shard.number]
        waiting.discard(path)
        if not waiting and shard.number not in self.shards:
            self._assemble.append(shard)


def group_units(sizes: Iterable[int], most: int) -> list[range]:
    """Groups consecutive units of about `most` bytes: decided beforehand, so that it doesn't depend on timing."""
    groups: list[range] = []
    start = total = number = -1
    for number, size in enumerate(sizes):
        if start < 0 or total >= most:
            if start >= 0:
                groups.append(range(start, number))
            start, total = number, 0
        total += size
    return [*groups, range(start, number + 1)] if start >= 0 else groups
