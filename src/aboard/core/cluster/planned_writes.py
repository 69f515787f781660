"""What a run will write: where, and how much."""

from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class PlannedWrites:
    """`path` is a directory on every node; the disk behind it must have room for `size` bytes.

    Where the nodes share that disk, it is the size of all that they write; where each has its own, of what one writes.
    """

    path: str
    size: int
