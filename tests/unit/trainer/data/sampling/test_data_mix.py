"""Several sources as one stream: the right shares at every place, the same for any number of ranks."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from aboard.diagnoses import InputError
from aboard.trainer.data.sampling.source_mixing import SequenceDraw, compute_draw_counts, mix_sources

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=7)


@given(numbers=WEIGHTS)
def test_every_prefix_has_its_shares(numbers: list[int]) -> None:
    """After any number of draws, each source was drawn its share of them, to less than one."""
    weights = {f"s{number}": float(weight) for number, weight in enumerate(numbers)}
    cursor = mix_sources(dict.fromkeys(weights, 1000), 1, weights)
    drawn: Counter[str] = Counter()
    whole = sum(numbers)
    for index in range(2 * whole):
        drawn[cursor(index).source] += 1
        # Both sides times the whole: integers are exact, and far cheaper than fractions.
        assert all(abs(drawn[f"s{at}"] * whole - weight * (index + 1)) < whole for at, weight in enumerate(numbers))


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_each_source_is_gone_through_again_and_again(sizes: list[int], seed: int) -> None:
    """Epoch by epoch, all bins of a source come once before any comes twice."""
    named = {f"s{number}": size for number, size in enumerate(sizes)}
    weights = {name: float(number + 1) for number, name in enumerate(named)}
    cursor = mix_sources(named, seed, weights)
    draws = [cursor(index) for index in range(40 * len(sizes) ** 2)]
    for name, size in named.items():
        own = [draw for draw in draws if draw.source == name]
        for epoch in range(len(own) // size):
            turn = own[epoch * size : (epoch + 1) * size]
            assert sorted(draw.bin for draw in turn) == list(range(size))
            assert {draw.epoch for draw in turn} == {epoch}


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_without_weights_each_bin_comes_once_an_epoch(sizes: list[int], seed: int) -> None:
    """Sources that are simply put together are one permutation of all their bins."""
    named = {f"s{number}": size for number, size in enumerate(sizes)}
    cursor = mix_sources(named, seed)
    every = sorted((name, place) for name, size in named.items() for place in range(size))
    for epoch in range(2):
        turn = [cursor(epoch * len(every) + index) for index in range(len(every))]
        assert sorted((draw.source, draw.bin) for draw in turn) == every
        assert {draw.epoch for draw in turn} == {epoch}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_number_of_ranks_changes_nothing(ranks: int) -> None:
    """Ranks that each take every so-many-th index see together what one sees alone."""
    sizes, weights = {"a": 30, "b": 7}, {"a": 0.7, "b": 0.3}
    alone = [mix_sources(sizes, 5, weights)(index) for index in range(240)]
    cursors = [mix_sources(sizes, 5, weights) for _ in range(ranks)]
    assert [cursors[index % ranks](index) for index in range(240)] == alone


def test_a_seek_is_as_good_as_the_way() -> None:
    """Index 10¹² is found without those before it, and in the share that it must be."""
    cursor = mix_sources({"a": 1000, "b": 10**9}, 1, {"a": 0.25, "b": 0.75})
    far = [cursor(10**12 + index) for index in range(4000)]
    assert Counter(draw.source for draw in far) == {"a": 1000, "b": 3000}
    assert {draw.epoch for draw in far if draw.source == "a"} == {10**12 // 4 // 1000}


def test_sources_of_one_size_do_not_keep_step() -> None:
    """Two sources of one size are in orders of their own."""
    cursor = mix_sources({"a": 100, "b": 100}, 1, {"a": 1, "b": 1})
    draws = [cursor(index) for index in range(200)]
    first, second = ([draw.bin for draw in draws if draw.source == name] for name in "ab")
    assert first != second


def test_the_mix_is_pinned() -> None:
    """A checkpoint holds an index into this stream: a change of it would be another training run."""
    cursor = mix_sources({"a": 10, "b": 5}, 3, {"a": 0.6, "b": 0.4})
    assert [cursor(index) for index in (0, 1, 2, 10**6)] == [
        SequenceDraw(source="a", bin=2, epoch=0),
        SequenceDraw(source="b", bin=2, epoch=0),
        SequenceDraw(source="a", bin=5, epoch=0),
        SequenceDraw(source="a", bin=4, epoch=60000),
    ]


def test_weights_are_what_is_written() -> None:
    """A tenth is a tenth, thirds of seven digits are held to a hundred-thousandth."""
    assert compute_draw_counts({"a": 0.7, "b": 0.2, "c": 0.1}) == {"a": 7, "b": 2, "c": 1}
    assert compute_draw_counts({"a": 0.3333333, "b": 0.6666667}) == {"a": 33333, "b": 66667}


def test_weights_that_cannot_be_held_are_refused() -> None:
    """One that is too small to come in its share is an error with the least that would do."""
    with pytest.raises(InputError, match="data-mix-far") as caught:
        mix_sources({"tiny": 5, "large": 5}, 0, {"tiny": 0.0000123, "large": 1.0})
    assert [problem.where for problem in caught.value.problems] == ["tiny"]
    least = float(caught.value.fix.split(" at least ")[1].split(",")[0])
    compute_draw_counts({"tiny": least, "large": 1.0})


@pytest.mark.parametrize(
    ("sizes", "weights", "wrong"),
    [
        ({}, None, ["sources"]),
        ({"a": 0, "b": 1}, None, ["a"]),
        ({"a": 1, "b": 1}, {"a": 1.0}, ["b"]),
        ({"a": 1}, {"a": 1.0, "x": 1.0}, ["x"]),
        ({"a": 1, "b": 1, "c": 1}, {"a": 0.0, "b": -1.0, "c": float("nan")}, ["a", "b", "c"]),
    ],
)
def test_what_makes_no_mix_is_said_at_once(
    sizes: dict[str, int], weights: dict[str, float] | None, wrong: list[str]
) -> None:
    """All that is wrong with sizes and weights comes in one error."""
    with pytest.raises(InputError) as caught:
        mix_sources(sizes, 0, weights)
    assert [problem.where for problem in caught.value.problems] == wrong
