"""What workers count apart adds up: in any order, over any cuts, in bounded memory."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.length_statistics import EXACT_BELOW, LengthCounts, build_bars, count_lengths
from aboard.trainer.data.quality import row_fingerprints as prints_file
from aboard.trainer.data.quality.data_check import collect_statistics
from aboard.trainer.data.quality.data_evidence import DataEvidence, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import MAX_EXAMPLE_TOKENS, MAX_EXAMPLES
from aboard.trainer.data.quality.row_fingerprints import RowFingerprints, compute_fingerprints
from aboard.trainer.data.quality.row_statistics import CheckedRow, DataStatistics
from aboard.trainer.data.quality.rules.duplicate_rows import check_duplicates
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow, RowLocation
from aboard.trainer.data.sampling.packing_estimate import estimate_packing

STOP = 7
TERMS = EncodingSettings(tokenizer="t", bos=1, stops=frozenset({STOP}), specials=("<s>",), max_length=8)


def item(line: int, text: str, length: int = 4) -> CheckedRow:
    where = RowLocation(file=Untrusted("a.jsonl"), line=line)
    if text == "broken":
        return CheckedRow(row=InvalidRow(location=where, code="row-json", why=Untrusted("no JSON")))
    ids = np.arange(10, 10 + length, dtype=np.uint32)
    mask = np.full(length, text != "masked")
    return CheckedRow(
        row=DataRow(location=where, kind="text", text=text), encoded=EncodedRow(location=where, ids=ids, mask=mask)
    )


def plain(found: DataStatistics) -> object:
    """All that a tally says, comparable."""
    signs = {name: (seen.count, [str(each.location) for each in seen.examples]) for name, seen in found.signs.items()}
    prints = sorted(zip(found.prints.hashes.tolist(), _lines(found.prints), strict=True))
    lengths = (found.tokens.counts, found.tokens.total, found.tokens.longest, found.characters.total)
    return found.rows, found.broken, dict(found.kinds), signs, lengths, found.supervised, found.longest, prints


def _lines(found: RowFingerprints) -> list[int]:
    return [int(line) for part in found.parts for line in part.lines]


ITEMS = st.lists(
    st.tuples(st.sampled_from(["a", "b", " ", "broken", "masked", "<s>"]), st.integers(1, 12)), max_size=12
)


@given(rows=ITEMS, cuts=st.lists(st.integers(0, 12), max_size=4), way=st.sampled_from([1, -1]))
def test_tallies_add_up_however_the_rows_are_cut(rows: list[tuple[str, int]], cuts: list[int], way: int) -> None:
    """One worker or five, whoever is done first: the same counts, and the same first examples."""
    items = [item(line, text, length) for line, (text, length) in enumerate(rows, start=1)]
    parts = [items[a:b] for a, b in pairwise(sorted({0, len(items), *cuts}))]
    whole = collect_statistics(items, TERMS)
    apart = sum((collect_statistics(part, TERMS) for part in parts[::way]), DataStatistics())
    assert plain(apart) == plain(whole)


def test_examples_are_few_and_bounded() -> None:
    """A row of a million tokens doesn't travel; neither do a million rows."""
    found = collect_statistics(
        [item(line, "masked", MAX_EXAMPLE_TOKENS * 2) for line in range(9, 0, -1)], TERMS
    ).find_flagged("unsupervised")
    assert (found.count, [each.location.line for each in found.examples]) == (9, [1, 2, 3][:MAX_EXAMPLES])
    assert [len(each.encoded.ids) for each in found.examples if each.encoded] == [MAX_EXAMPLE_TOKENS] * MAX_EXAMPLES


def test_a_tally_travels_between_workers() -> None:
    """Pickled and back, with all of its examples."""
    found = collect_statistics([item(1, "masked"), item(2, "broken")], TERMS)
    assert plain(pickle.loads(pickle.dumps(found))) == plain(found)  # noqa: S301 - our own


@pytest.mark.ci
def test_fingerprints_stay_bounded_and_equal_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows a part is kept, chosen by hash: the share of duplicates among them is that of all."""
    monkeypatch.setattr(prints_file, "LIMIT", 1_000)
    rows = [
        DataRow(location=RowLocation(file=Untrusted("a"), line=at + 1), kind="text", text=str(at % 15_000))
        for at in range(20_000)
    ]
    found = sum((compute_fingerprints(rows[at : at + 500]) for at in range(0, len(rows), 500)), RowFingerprints())
    assert len(found) <= 1_000
    assert found.level == 5
    # Who has kept all of few rows joins those who kept a part of many, from either side.
    assert [(compute_fingerprints(rows[:500]) + found).level, (found + compute_fingerprints(rows[:500])).level] == [
        5,
        5,
    ]
    assert sorted((compute_fingerprints(rows[:500]) + found).hashes) == sorted(
        (found + compute_fingerprints(rows[:500])).hashes
    )
    evidence = DataEvidence(
        statistics=DataStatistics(rows=len(rows), prints=found), settings=EncodingSettings(),
        files=("a",), command="aboard data a",
        format="text", given=False,
    )  # fmt: skip
    (told,) = check_duplicates(evidence)
    assert told.seen.startswith("in a sample of one in 32 rows: ")
    again = len(found.hashes) - len(np.unique(found.hashes))
    assert 0.18 < again / len(found.hashes) < 0.32  # a quarter of all


def test_percentiles() -> None:
    """The least length that so many rows don't exceed; nothing of nothing."""
    found = count_lengths(range(1, 101))
    assert [found.percentile(share) for share in (0.01, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert LengthCounts().percentile(0.5) == 0


def test_long_lengths_are_counted_to_a_hundredth() -> None:
    """So that there are never many different ones; the sum and the longest stay exact."""
    found = count_lengths([EXACT_BELOW * 3 + at for at in range(5_000)])
    assert len(found.counts) < 60
    assert found.longest == EXACT_BELOW * 3 + 4_999
    assert found.total == sum(EXACT_BELOW * 3 + at for at in range(5_000))
    assert found.percentile(1.0) == found.longest


@given(lengths=st.lists(st.integers(0, 200_000), min_size=1, max_size=60), most=st.integers(12, 40))
def test_bars_hold_every_row_once(lengths: list[int], most: int) -> None:
    """Whatever the lengths: no row is lost between two bars, each bar ends where the next begins, there are few."""
    found = build_bars(count_lengths(lengths), most)
    assert sum(bar.rows for bar in found) == len(lengths)
    assert all(one.high + 1 == two.low for one, two in pairwise(found))
    assert len(found) <= max(most, 20)


def test_bins_are_filled_as_preparation_does() -> None:
    """Conversations are cut at the length, texts go on; what is lost is counted."""
    fill = estimate_packing({"chat": count_lengths([6, 4, 20]), "text": count_lengths([25])}, 10)
    # 6+4, the cut one, two pieces of the text, and its rest of five.
    assert (fill.bins, fill.kept, fill.tokens) == (5, 45, 55)
    assert fill.full == 0.9


@pytest.mark.parametrize(
    ("count", "total", "said"),
    [
        (3, 3, "all 3 rows"),
        (1, 1, "the only row"),
        (31, 1000, "31 of 1,000 rows (3.1 %)"),
        (1, 5000, "1 of 5,000 rows"),
    ],
)
def test_shares(count: int, total: int, said: str) -> None:
    """As people say them; percents where they tell something."""
    assert format_share(count, total) == said
