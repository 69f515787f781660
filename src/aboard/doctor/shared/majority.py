"""The usual value in a cluster, against which nodes that differ are reported."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


def find_majority(values: Mapping[str, T]) -> T | None:
    """The value that more than half of the nodes have; None when there is no such value."""
    if not values:
        return None
    value, count = Counter(values.values()).most_common(1)[0]
    return value if 2 * count > len(values) else None


def find_most_common(values: Mapping[str, T], better: Callable[[T], Any]) -> T | None:
    """The most frequent value, and of equally frequent ones the better: two nodes that differ have no majority."""
    if not values:
        return None
    counts = Counter(values.values())
    return max(counts, key=lambda value: (counts[value], better(value)))


def group_by_value(values: Mapping[K, T]) -> dict[T, tuple[K, ...]]:
    """The nodes by value, so that what many nodes share is reported once."""
    groups: dict[T, list[K]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return {value: tuple(names) for value, names in groups.items()}
