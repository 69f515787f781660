"""Packs documents into sequences: exact best-fit-decreasing, many documents of one length at a time."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def pack_lengths(lengths: Numbers, capacity: int) -> Numbers:
    """The bin of each length; bins are numbered from 0 in the order in which they are opened, longest documents first.

    Best-fit-decreasing: each document, longest first, goes to the fullest bin with enough room. Documents of one length
    are interchangeable, and so are bins with the same room, so they are placed together: one step for each pair of a
    length and a room, far fewer than one per document.
    """
    order = np.argsort(-lengths, kind="stable")
    sizes, starts = np.unique(-lengths[order], return_index=True)
    ends = [*starts.tolist(), len(order)][1:]
    placed = np.empty(len(order), np.int64)
    rooms = _Rooms(capacity)
    for size, start, end in zip((-sizes).tolist(), starts.tolist(), ends, strict=True):
        at = start
        while at < end:
            taken, copies = rooms.take(size, end - at)
            count = len(taken) * copies
            placed[at : at + count] = np.repeat(np.asarray(taken, np.int64), copies)
            at += count
    bins = np.empty(len(order), np.int64)
    bins[order] = placed
    return bins


class _Rooms:
    """Open bins by remaining room; finds the smallest sufficient room in O(1)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_room: dict[int, list[int]] = {}
        self._opened = 0
        # Two levels of bits: which rooms exist within each span, and which spans have any.
        self._spans = [0] * (capacity // _SPAN + 1)
        self._any = 0

    def take(self, size: int, count: int) -> tuple[list[int], int]:
        """The next bins for up to `count` documents of this size, exactly as if placed one by one, and copies each."""
        room = self._least(size)
        if room is None:
            room, found = self._capacity, self._open(size, count)
        else:
            found = self._by_room[room]
        # A bin that took one is still the fullest for the next, as long as it has room.
        copies = min(room // size, count)
        bins = found[max(0, len(found) - count // copies) :]
        del found[len(found) - len(bins) :]
        if not found:
            self._drop(room)
        self._put(room - copies * size, bins)
        return bins, copies

    def _least(self, size: int) -> int | None:
        span, bit = divmod(size, _SPAN)
        within = self._spans[span] >> bit
        if within:
            return size + _find_lowest_bit(within)
        above = self._any >> (span + 1)
        if not above:
            return None
        span += 1 + _find_lowest_bit(above)
        return span * _SPAN + _find_lowest_bit(self._spans[span])

    def _open(self, size: int, count: int) -> list[int]:
        new = -(-count // (self._capacity // size))
        bins = list(range(self._opened, self._opened + new))
        self._opened += new
        # The last one may stay partly empty: `take` puts it back with its remaining room.
        self._put(self._capacity, bins)
        return self._by_room[self._capacity]

    def _put(self, room: int, bins: list[int]) -> None:
        if room == 0:
            return
        self._by_room.setdefault(room, []).extend(bins)
        span, bit = divmod(room, _SPAN)
        self._spans[span] |= 1 << bit
        self._any |= 1 << span

    def _drop(self, room: int) -> None:
        del self._by_room[room]
        span, bit = divmod(room, _SPAN)
        self._spans[span] &= ~(1 << bit)
        if not self._spans[span]:
            self._any &= ~(1 << span)


_SPAN = 1024


def _find_lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
