"""Thins series for drawing: of each bucket its extremes are kept, so that no peak disappears."""

from collections.abc import Sequence


def choose_rows(columns: Sequence[Sequence[float | None]], *, buckets: int) -> list[int]:
    """The rows to draw: of each bucket its first and last, and those of each column's smallest and largest value."""
    count = max(map(len, columns), default=0)
    if count <= 2 * buckets:
        return list(range(count))
    chosen: set[int] = set()
    for number in range(buckets):
        start, stop = number * count // buckets, (number + 1) * count // buckets
        chosen |= {start, stop - 1}
        for column in columns:
            values = [value for value in column[start:stop] if value is not None]
            if values:
                chosen |= {column.index(min(values), start, stop), column.index(max(values), start, stop)}
    return sorted(chosen)


def round_number(value: float | None) -> float | None:
    """Six significant digits, which is more than a screen shows."""
    return None if value is None else float(f"{value:.6g}")
