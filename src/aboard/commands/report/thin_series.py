"""Thins series for drawing: of each bucket its extremes are kept, so that no peak disappears."""

from collections.abc import Sequence
from itertools import pairwise


def choose_rows(columns: Sequence[Sequence[float | None]], *, buckets: int) -> list[int]:
    """The rows to draw: of each bucket its first and last, and those of each column's smallest and largest value."""
    count = max(map(len, columns), default=0)
    if count <= 2 * buckets:
        return list(range(count))
    ends = [number * count // buckets for number in range(buckets + 1)]
    chosen = {*ends[:-1], *(end - 1 for end in ends[1:])}
    for column in columns:
        for start, stop in pairwise(ends):
            part = column[start:stop]
            if values := [value for value in part if value is not None]:
                chosen |= {start + part.index(min(values)), start + part.index(max(values))}
    return sorted(chosen)


def round_number(value: float | None) -> float | None:
    """Six significant digits, which is more than a screen shows."""
    return None if value is None else float(f"{value:.6g}")
