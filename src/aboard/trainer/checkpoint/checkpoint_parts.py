"""Which files of a checkpoint are needed, if they are spread over several nodes. Pure: no torch, no I/O."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.commit_marker import Box, CheckpointFile, CommitMarker

# One slice of a tensor; several files may contain a copy of it.
Slice = tuple[str, Box]

MODEL_PREFIX, OPTIMIZER_PREFIX = "model/", "optimizer/"


@dataclass(frozen=True, kw_only=True)
class PartSelection:
    """The files to use, and those of which at least one copy of a slice is lacking."""

    files: tuple[CheckpointFile, ...]
    lacking: tuple[CheckpointFile, ...]


def list_slices(files: Iterable[CheckpointFile], *, prefix: str = "") -> set[Slice]:
    """The slices in these files, of tensors whose name begins with the prefix."""
    return {(name, box) for file in files for name, box in file.slices.items() if name.startswith(prefix)}


def select_parts(
    marker: CommitMarker, slices: Collection[Slice], *, held: Collection[str] = (), available: Collection[str]
) -> PartSelection:
    """The fewest obvious files that add the slices to those of the held files, from the available ones, by name."""
    missing = set(slices) - list_slices(file for file in marker.files if file.name in held)
    chosen: list[CheckpointFile] = []
    lacking: dict[str, CheckpointFile] = {}
    for file in marker.files:
        own = missing & list_slices([file])
        if own and file.name in available:
            chosen.append(file)
            missing -= own
    for file in marker.files:
        own = missing & list_slices([file])
        if own:
            lacking[file.name] = file
            missing -= own
    return PartSelection(files=tuple(chosen), lacking=tuple(lacking.values()))


def plan_copies(files: Iterable[CheckpointFile]) -> dict[int, tuple[int, tuple[CheckpointFile, ...]]]:
    """By disk, the disk before it in a ring and the files that only that one has: they are copied to this disk.

    The disk after that of rank 0 also gets its metrics and trackers, even if there is no file to be copied.
    """
    by_disk: dict[int, list[CheckpointFile]] = defaultdict(list)
    for file in files:
        by_disk[file.disk].append(file)
    slices = {disk: list_slices(own) for disk, own in by_disk.items()}
    counts = Counter(each for found in slices.values() for each in found)
    disks = sorted(by_disk)
    plan = {}
    for source, disk in zip(disks, [*disks[1:], *disks[:1]], strict=True):
        single = tuple(file for file in by_disk[source] if any(counts[each] == 1 for each in list_slices([file])))
        if source != disk and (single or source == 0):
            plan[disk] = (source, single)
    return plan


def list_needed_slices(marker: CommitMarker, ranks: Mapping[int, str], *, sharding: object) -> dict[str, set[Slice]]:
    """By node, the slices that its ranks restore; with another layout than the checkpoint's, all of them.

    In the same layout, a node needs what the disk of its ranks has: the ranks of a disk share the writing.
    """
    nodes = dict.fromkeys(ranks.values())
    if not _is_same_layout(marker, ranks, sharding):
        every = list_slices(marker.files)
        return dict.fromkeys(nodes, every)
    disks: dict[str, set[int]] = defaultdict(set)
    for file in marker.files:
        disks[ranks[file.rank]].add(file.disk)
    return {node: list_slices(file for file in marker.files if file.disk in disks[node]) for node in nodes}


def _is_same_layout(marker: CommitMarker, ranks: Mapping[int, str], sharding: object) -> bool:
    """Whether the same ranks are together on a node, and are sharded by the same setting."""
    if marker.world != len(ranks) or marker.training.get("sharding") != sharding:
        return False
    pairs = {(file.node, ranks.get(file.rank)) for file in marker.files}
    both: Sequence[set[str | None]] = [{pair[0] for pair in pairs}, {pair[1] for pair in pairs}]
    return len(pairs) == len(both[0]) == len(both[1]) and {file.rank for file in marker.files} == set(ranks)
