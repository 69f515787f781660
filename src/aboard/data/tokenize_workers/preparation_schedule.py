"""What is left to do in a preparation, and in which order: shards as soon as they can be, else the next unit."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from aboard.data.store.shard_manifest import Shard
from aboard.data.tokenize_workers.encoded_unit import UnitRecord
from aboard.data.tokenize_workers.shard_assembly import DamagedUnitError
from aboard.data.tokenize_workers.worker_process import AssembleOrder, EncodeOrder, WorkerOrder

# A unit that is unsound again and again is a disk that doesn't keep what it is given.
_MAX_TRIES = 3


class PreparationSchedule:
    """Pure: it is told what was done, and says what comes next."""

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

    def found(self, records: Mapping[Path, UnitRecord], shards: Mapping[int, Shard]) -> None:
        """What an earlier preparation has left: these are not made again."""
        self.records.update(records)
        self.shards.update(shards)
        self._encode = deque(unit for unit in self._encode if unit.path not in records)
        for path in records:
            self._ready(path)

    def next(self) -> WorkerOrder | None:
        """Nothing may be left to give out while others are still at work."""
        if self._assemble:
            return self._assemble.popleft()
        return self._encode.popleft() if self._encode else None

    def encoded(self, unit: EncodeOrder, record: UnitRecord) -> None:
        self.records[unit.path] = record
        self._ready(unit.path)

    def assembled(self, order: AssembleOrder, shard: Shard) -> None:
        self.shards[order.number] = shard

    def retry_unit(self, damaged: DamagedUnitError) -> bool:
        """The unit is made again, and its shard after it; False when that was tried too often."""
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
    """Consecutive units whose sizes come to about `most`: decided before the work, so that it doesn't depend on it."""
    groups: list[range] = []
    start = total = number = -1
    for number, size in enumerate(sizes):
        if start < 0 or total >= most:
            if start >= 0:
                groups.append(range(start, number))
            start, total = number, 0
        total += size
    return [*groups, range(start, number + 1)] if start >= 0 else groups
