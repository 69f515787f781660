"""Cuts what is sent or installed into batches."""

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TypeVar

T = TypeVar("T")


def split_batches(
    items: Iterable[T], count_bytes: Callable[[T], int], *, most_bytes: int, most_items: float = inf
) -> Iterator[list[T]]:
    """Batches within these limits, in order; an item above them is a batch of its own."""
    batch: list[T] = []
    room = most_bytes
    for item in items:
        size = count_bytes(item)
        if batch and (size > room or len(batch) >= most_items):
            yield batch
            batch, room = [], most_bytes
        batch.append(item)
        room -= size
    if batch:
        yield batch
