"""The order of an epoch: a bijection, without a pattern, computed at any place at one price."""

import sys
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given, strategies as st

from aboard.trainer.data.sampling.source_mixing import build_permutation

SEEDS = st.integers(0, 2**64)


@given(seed=SEEDS, epoch=st.integers(0, 1000), n=st.integers(0, 3000))
def test_each_index_comes_once(seed: int, epoch: int, n: int) -> None:
    """No sample is left out and none comes twice, whatever the size, the epoch and the seed."""
    order = build_permutation(seed, epoch, n)
    assert sorted(map(order, range(n))) == list(range(n))


@given(seed=SEEDS, n=st.integers(1, 10**15), data=st.data())
def test_large_sizes_stay_in_range(seed: int, n: int, data: st.DataObject) -> None:
    """At a size that can't be listed, different indices still give different places in range."""
    indices = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=50))
    places = list(map(build_permutation(seed, 0, n), indices))
    assert all(0 <= place < n for place in places)
    assert len(set(places)) == len(places)


@given(seed=SEEDS, epoch=st.integers(0, 100))
def test_epochs_and_seeds_differ(seed: int, epoch: int) -> None:
    """The next epoch is another order, and so is the next seed: they part within the first few places."""
    orders = [
        build_permutation(seed, epoch, 200),
        build_permutation(seed, epoch + 1, 200),
        build_permutation(seed + 1, epoch, 200),
    ]
    assert len({tuple(map(order, range(20))) for order in orders}) == 3


def test_the_order_is_pinned() -> None:
    """A checkpoint holds a place in this order: a change of it would be another training run."""
    assert list(map(build_permutation(7, 2, 10), range(10))) == [6, 2, 3, 1, 8, 7, 4, 5, 0, 9]
    assert [build_permutation(7, 2, 10**12)(index) for index in (0, 1, 10**12 - 1)] == [
        809541699368,
        780747495687,
        539058222929,
    ]


@pytest.mark.parametrize("index", [-1, 5, 10**12])
def test_there_is_nothing_outside(index: int) -> None:
    """An index outside of the range is a mistake, not a sample."""
    with pytest.raises(IndexError):
        build_permutation(1, 1, 5)(index)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, *(pytest.param(n, marks=pytest.mark.ci) for n in (10, 16, 31))])
def test_places_of_small_sizes_are_even(n: int) -> None:
    """Over many seeds each index comes to each place equally often: chi-square below its 99.99th percentile."""
    seeds = 1500
    counts = [[0] * n for _ in range(n)]
    for seed in range(seeds):
        for index, place in enumerate(map(build_permutation(seed, 0, n), range(n))):
            counts[index][place] += 1
    assert _chi_square(counts, seeds / n) < _limit((n - 1) ** 2)


@pytest.mark.parametrize("n", [10_007, 2**16, 10**12])
def test_places_of_large_sizes_are_even(n: int) -> None:
    """Where an index is says nothing about its place: chi-square over a grid of 32 by 32."""
    cells = 32
    drawn = min(n, 20_000)
    counts = [[0] * cells for _ in range(cells)]
    order = build_permutation(3, 1, n)
    for number in range(drawn):
        index = number * n // drawn
        counts[index * cells // n][order(index) * cells // n] += 1
    assert _chi_square(counts, drawn / cells**2) < _limit((cells - 1) ** 2)


def test_neighbours_part() -> None:
    """Samples that follow each other in a file don't follow each other in the order."""
    n = 10_007
    places = list(map(build_permutation(0, 0, n), range(n)))
    near = sum(abs(left - right) <= 10 for left, right in pairwise(places))
    assert near < 4 * 20  # 20 of n are near by chance


def test_nothing_is_stored() -> None:
    """An order of 10¹³ is as large as one of a million."""
    small, large = build_permutation(1, 0, 10**6), build_permutation(1, 0, 10**13)
    assert sys.getsizeof(large) == sys.getsizeof(small)


def _chi_square(counts: list[list[int]], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for row in counts for count in row)


def _limit(freedom: int) -> float:
    """The 99.99th percentile by Wilson and Hilferty."""
    share = 2 / (9 * freedom)
    return float(freedom * (1 - share + 3.719 * sqrt(share)) ** 3)
