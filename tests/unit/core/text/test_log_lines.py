"""Folding equal lines of many ranks, and the small words beside it: rank sets and lengths of time."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from aboard.core.text.fold_lines import WINDOW, OutputLine, fold_lines
from aboard.core.text.input_text import agree
from aboard.core.text.rank_sets import fold_ranks, name_ranks, parse_ranks
from aboard.diagnoses import InputError
from aboard.doctor.death.folded_tracebacks import TracebackFolder


def _line(rank: int, text: str, at: float = 0.0, stream: str = "stdout") -> OutputLine:
    return OutputLine(at, rank, "n1", stream, text.encode())


def _said(*lines: OutputLine) -> list[tuple[list[int], str, bool]]:
    return [(sorted(told.ranks), told.line.text.decode(), told.alike) for told in fold_lines(lines)]


def test_equal_lines_of_many_ranks_are_one() -> None:
    """In the place of the first of them; other lines stay where they are."""
    lines = [_line(0, "loading"), _line(1, "loading"), _line(0, "done"), _line(2, "loading"), _line(1, "odd")]
    assert _said(*lines) == [([0, 1, 2], "loading", False), ([0], "done", False), ([1], "odd", False)]


def test_numbers_may_differ() -> None:
    """Ranks, times, addresses, losses: one line in the words of the earliest, which says that others differ."""
    lines = [
        _line(1, "[12:00:02] rank 1 at 0x7fFe: loss 1.25e-05", at=2.0),
        _line(0, "[12:00:01] rank 0 at 0x1: loss -0.3", at=1.0),
    ]
    assert _said(*lines) == [([0, 1], "[12:00:01] rank 0 at 0x1: loss -0.3", True)]


def test_a_rank_that_repeats_itself_is_not_folded_into_one() -> None:
    """Three retries of one rank are three lines; of two ranks, three lines of two."""
    alone = [_line(0, f"retry {number}") for number in range(3)]
    assert [ranks for ranks, _, _ in _said(*alone)] == [[0], [0], [0]]
    both = [_line(rank, f"retry {number}") for rank in (0, 1) for number in range(3)]
    assert _said(*both) == [([0, 1], f"retry {number}", False) for number in range(3)]


def test_ranks_that_are_a_step_apart_share_no_line() -> None:
    """Each step is shown once, with all of its ranks, although rank 0 began to print a step earlier."""
    lines = [_line(0, "step 1 loss 2.0"), _line(0, "step 2 loss 1.5", at=0.2), _line(1, "step 2 loss 1.6", at=0.1)]
    lines += [_line(0, "step 3 loss 1.4", at=0.4), _line(1, "step 3 loss 1.4", at=0.3)]
    assert [(ranks, text[:6]) for ranks, text, _ in _said(*lines)] == [
        ([0], "step 1"),
        ([0, 1], "step 2"),
        ([0, 1], "step 3"),
    ]


def test_the_seconds_of_a_step_may_differ() -> None:
    """A time is no number of a step."""
    lines = [_line(rank, f"step: {seconds}") for rank, seconds in enumerate(("0.51 s", "0.52 s"))]
    lines += [_line(rank, f"step {seconds}") for rank, seconds in enumerate(("312 ms", "310 ms"))]
    assert [ranks for ranks, _, _ in _said(*lines)] == [[0, 1], [0, 1]]


def test_streams_and_times_apart_are_not_the_same() -> None:
    """What is printed much later is another thing, and so is what is printed to stderr."""
    lines = [_line(0, "hi"), _line(1, "hi", stream="stderr"), _line(2, "hi", at=WINDOW + 0.1)]
    assert [ranks for ranks, _, _ in _said(*lines)] == [[0], [1], [2]]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 9)), max_size=60))
def test_folding_loses_no_line(given_lines: list[tuple[int, str, int]]) -> None:
    """Forward and backward, each line of each rank is in exactly one group, and no rank twice in one."""
    lines = sorted((_line(rank, text, at=float(at)) for rank, text, at in given_lines), key=lambda line: line.at)
    for order in (lines, lines[::-1]):
        told = list(fold_lines(order))
        counted = Counter((rank, each.line.text) for each in told for rank in each.ranks)
        assert counted == Counter((line.rank, line.text) for line in lines)
        assert all(len(set(each.ranks)) == len(each.ranks) for each in told)


@pytest.mark.ci
def test_a_flood_of_different_lines_holds_little() -> None:
    """Groups are let go when there are too many, before the window has passed."""
    lines = (_line(0, "x" * number) for number in range(1, 6000))
    assert next(iter(fold_lines(lines))).line.text == b"x"
    assert next(lines).text == b"x" * 4098


@given(st.sets(st.integers(0, 200)))
def test_rank_sets_there_and_back(ranks: set[int]) -> None:
    """What is written short is read as the same ranks."""
    assert not ranks or parse_ranks(fold_ranks(ranks)) == ranks


def test_rank_sets_as_people_write_them() -> None:
    """Short, with blanks, and every mistake at once."""
    assert fold_ranks([9, *range(8), 3]) == "0-7,9"
    assert parse_ranks("3, 5-7") == {3, 5, 6, 7}
    with pytest.raises(InputError) as caught:
        parse_ranks("3,,x,7-5,99999999")
    assert len(caught.value.problems) == 4


def test_ranks_are_named_with_the_right_number() -> None:
    """One rank is singular; a range is not."""
    assert (name_ranks([3]), agree([3], "is", "are")) == ("rank 3", "is")
    assert (name_ranks((0, 1, 2, 8)), agree((0, 1), "is", "are")) == ("ranks 0-2,8", "are")
    assert name_ranks([1, 2], "launcher") == "launchers 1-2"


RESET = """Traceback (most recent call last):
  File "/home/me/train.py", line 13, in step
    dist.all_reduce(grads)
RuntimeError: [pair.cc:537] Read error [10.0.0.1]:44961: Connection reset by peer
Exception raised from wait at ../x.cpp:3 (most recent call first):
frame #0: c10::Error::Error() + 0x7b
going on
"""
BOOM = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in step
ValueError: bad batch
"""


def test_the_tracebacks_of_ranks_that_lost_a_peer_are_one_line() -> None:
    """They follow from another rank's death, whose own traceback is shown whole; nothing else is held back."""
    folder = TracebackFolder("brave-otter")
    lines = [
        OutputLine(at=1.0 + rank, rank=rank, node="n1", stream="stderr", text=text.encode())
        for rank, said in ((0, RESET), (1, BOOM), (2, RESET))
        for text in said.splitlines()
    ]
    shown = [line.text.decode() for line in folder.fold(lines)]
    assert shown[1:4] == ["going on", *BOOM.splitlines()[:2]]
    assert [line for line in shown if "Connection reset" in line] == [
        "RuntimeError: [pair.cc:537] Read error [10.0.0.1]:44961: Connection reset by peer (follows from another rank;"
        f" 4 lines: aboard logs brave-otter --rank {rank})"
        for rank in (0, 2)
    ]
    assert len(shown) == 7


def test_a_traceback_that_does_not_end_is_shown_in_the_end() -> None:
    folder = TracebackFolder("brave-otter")
    lines = [OutputLine(at=1.0, rank=0, node="n1", stream="stderr", text=b"Traceback (most recent call last):")]
    assert list(folder.fold(lines)) == []
    assert list(folder.fold([], last=True)) == lines
