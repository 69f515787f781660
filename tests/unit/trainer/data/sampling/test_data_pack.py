"""Packing: exact best-fit-decreasing, full bins, and nothing lost without being counted."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from aboard.trainer.data.sampling.best_fit_packing import pack_lengths
from aboard.trainer.data.sampling.document_segments import OverflowPolicy, TruncationLosses, build_segments
from aboard.trainer.data.store.shard_index import DOCUMENT_DTYPE, Documents

LENGTHS = st.integers(1, 64).flatmap(
    lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity), max_size=120))
)


def _one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Best-fit-decreasing as the books have it: the room that is left in each bin."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [place for place, room in enumerate(rooms) if room >= length]
        if not fitting:
            rooms.append(capacity)
        place = min(fitting, key=lambda place: rooms[place], default=len(rooms) - 1)
        rooms[place] -= length
    return sorted(rooms)


@given(LENGTHS)
def test_many_at_once_is_as_one_by_one(given_: tuple[int, list[int]]) -> None:
    """The bins are filled exactly as if documents were placed singly, and none overflows."""
    capacity, lengths = given_
    bins = pack_lengths(np.asarray(lengths, np.int64), capacity)
    filled = np.bincount(bins, weights=lengths).astype(int) if lengths else np.empty(0, int)
    assert sorted(capacity - filled) == _one_by_one(lengths, capacity)
    assert (filled > 0).all()


@pytest.mark.parametrize("capacity", [1024, 1025, 4096, 100_000])
def test_bins_are_full(capacity: int) -> None:
    """Lengths as conversations have them fill 98 % of the bins at the least, whatever the capacity."""
    drawn = np.random.default_rng(1).lognormal(5.8, 1.1, 50_000).astype(np.int64)
    lengths = np.clip(drawn, 2, capacity)
    bins = pack_lengths(lengths, capacity)
    assert lengths.sum() / ((bins.max() + 1) * capacity) > 0.98


def test_packing_is_pinned() -> None:
    """The same documents give the same bins on every machine."""
    assert pack_lengths(np.array([5, 3, 3, 7, 2, 10, 1, 5]), 10).tolist() == [2, 1, 3, 1, 3, 0, 3, 2]


def _documents(*documents: tuple[int, int, bool]) -> Documents:
    made = np.zeros(len(documents), DOCUMENT_DTYPE)
    made["length"], made["supervised"], made["whole"] = zip(*documents, strict=True)
    made["offset"] = np.cumsum(made["length"]) - made["length"]
    return made


def _segments(
    documents: Documents, limit: int, cut: OverflowPolicy = "by-kind"
) -> tuple[list[tuple[int, ...]], TruncationLosses]:
    """Every second token is supervised in a piece of which it must be counted."""
    found, losses = build_segments(
        documents, number=100, limit=limit, cut=cut, supervised=lambda _, length: length // 2
    )
    return [tuple(map(int, segment)) for segment in found], losses


def test_text_goes_on_and_chats_are_cut() -> None:
    """A long text is split into pieces; a long conversation keeps its start, and the loss of the rest is counted."""
    found, losses = _segments(_documents((25, 20, False), (25, 20, True), (5, 4, True)), 10)
    assert found == [(0, 100, 10, 5), (10, 100, 10, 5), (20, 100, 5, 2), (25, 101, 10, 5), (50, 102, 5, 4)]
    assert losses == TruncationLosses(split=1, truncated=1, tokens_lost=15, supervised_lost=20 - 12 + 20 - 5)


@pytest.mark.parametrize(("cut", "pieces"), [("split", 3), ("truncate", 1), ("by-kind", 3)])
def test_the_cut_can_be_chosen(cut: OverflowPolicy, pieces: int) -> None:
    """All split, all truncated, or as suits the kind of document."""
    assert len(_segments(_documents((25, 10, False)), 10, cut)[0]) == pieces


def test_the_first_token_of_a_piece_has_no_loss() -> None:
    """A text that is supervised throughout loses one token a piece: nothing stands before it."""
    found, losses = _segments(_documents((20, 19, False)), 10)
    assert [segment[3] for segment in found] == [9, 9]
    assert losses == TruncationLosses(split=1, supervised_lost=1)


def test_a_single_token_is_no_segment() -> None:
    """It has nothing to learn: dropped as a document, and lost as the rest of one."""
    found, losses = _segments(_documents((1, 0, False), (11, 10, False)), 10)
    assert [segment[:3] for segment in found] == [(1, 101, 10)]
    assert losses == TruncationLosses(split=1, dropped=1, tokens_lost=2, supervised_lost=1)
