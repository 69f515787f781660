"""Statistics of a set of rows; the sum of two is that of all their rows."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, TypeAlias

from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.length_statistics import LengthCounts, count_lengths
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import ExampleRow, FlaggedRows, make_example
from aboard.trainer.data.quality.row_fingerprints import RowFingerprints, compute_fingerprints
from aboard.trainer.data.quality.row_sample import RowSample, sample_rows
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow, RowLocation

# The name of a flag, and a note about the row that has it.
RowFlag: TypeAlias = tuple[str, Untrusted]


@dataclass(frozen=True, kw_only=True)
class CheckedRow:
    """A row with its tokens, the reason why it has none, or neither if no tokenizer was given."""

    row: DataRow | InvalidRow
    encoded: EncodedRow | InvalidRow | None = None

    @property
    def location(self) -> RowLocation:
        return self.row.location

    @cached_property
    def broken(self) -> InvalidRow | None:
        if isinstance(self.row, InvalidRow):
            return self.row
        return self.encoded if isinstance(self.encoded, InvalidRow) else None

    @cached_property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Each text with its role; empty for an invalid row."""
        return tuple(list_texts(self.row)) if isinstance(self.row, DataRow) else ()

    @property
    def characters(self) -> int:
        return sum(len(text) for _who, text in self.texts)


# Inspects one row and yields its flags; it runs where rows are read, so it must be cheap.
RowInspector: TypeAlias = Callable[[CheckedRow, EncodingSettings], Iterator[RowFlag]]


@dataclass(frozen=True, kw_only=True)
class LongestRow:
    """The longest row; the first one if several are equally long."""

    length: int
    location: RowLocation

    @property
    def rank(self) -> tuple[int, Untrusted, int]:
        """Sorts the longest first, equally long rows by location, so that the order of addition doesn't matter."""
        return -self.length, self.location.file, self.location.line


@dataclass(frozen=True, kw_only=True)
class DataStatistics:
    """Counts over rows; `by_kind` and `supervised` count tokens of encoded rows, `characters` those of all rows."""

    rows: int = 0
    broken: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    signs: Mapping[str, FlaggedRows] = field(default_factory=dict)
    characters: LengthCounts = field(default_factory=LengthCounts)
    by_kind: Mapping[str, LengthCounts] = field(default_factory=dict)
    supervised: int = 0
    longest: LongestRow | None = None
    prints: RowFingerprints = field(default_factory=RowFingerprints)
    sample: RowSample = field(default_factory=RowSample)

    def __add__(self, other: "DataStatistics") -> "DataStatistics":
        return DataStatistics(
            rows=self.rows + other.rows,
            broken=self.broken + other.broken,
            kinds=_add_values(self.kinds, other.kinds),
            signs=_add_values(self.signs, other.signs),
            characters=self.characters + other.characters,
            by_kind=_add_values(self.by_kind, other.by_kind),
            supervised=self.supervised + other.supervised,
            longest=_pick_longest(self.longest, other.longest),
            prints=self.prints + other.prints,
            sample=self.sample + other.sample,
        )

    def find_flagged(self, name: str) -> FlaggedRows:
        return self.signs.get(name, FlaggedRows())

    @cached_property
    def tokens(self) -> LengthCounts:
        return sum(self.by_kind.values(), LengthCounts())

    @property
    def encoded(self) -> int:
        return self.tokens.rows

    def of(self, *kinds: str) -> int:
        return sum(self.kinds.get(kind, 0) for kind in kinds)


def _add_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **other, **{name: one[name] + other[name] for name in one.keys() & other.keys()}}


def count_rows(
    items: Iterable[CheckedRow],
    settings: EncodingSettings,
    inspectors: Sequence[RowInspector],
    *,
    prints: bool = True,
    earlier: RowSample | None = None,
) -> DataStatistics:
    """Inspects each row once; fingerprints are slow, and skipped if other ones exist.

    `earlier` is the sample that these rows will be added to.
    """
    every = list(items)
    # All are kept until the end: rows need not come in line order.
    examples: defaultdict[str, list[ExampleRow]] = defaultdict(list)
    encoded: defaultdict[str, list[EncodedRow]] = defaultdict(list)
    for item in every:
        tokens = item.encoded if isinstance(item.encoded, EncodedRow) else None
        for inspect in inspectors:
            for name, note in inspect(item, settings):
                examples[name].append(ExampleRow(location=item.location, note=note, encoded=tokens))
        if isinstance(item.row, DataRow) and tokens is not None:
            encoded[item.row.kind].append(tokens)
    rows = [item.row for item in every if isinstance(item.row, DataRow)]
    return DataStatistics(
        rows=len(every),
        broken=sum(item.broken is not None for item in every),
        kinds=dict(Counter(row.kind for row in rows)),
        signs={name: _make_flagged(each) for name, each in examples.items()},
        characters=count_lengths(item.characters for item in every if isinstance(item.row, DataRow)),
        by_kind={kind: count_lengths(len(each.ids) for each in rows_of_kind) for kind, rows_of_kind in encoded.items()},
        supervised=sum(int(each.mask.sum()) for rows_of_kind in encoded.values() for each in rows_of_kind),
        longest=_pick_longest(*map(_measure_row, every)),
        prints=compute_fingerprints(rows) if prints else RowFingerprints(),
        sample=sample_rows(rows, None if earlier is None else earlier.bound),
    )


def _measure_row(checked: CheckedRow) -> LongestRow | None:
    if isinstance(checked.encoded, EncodedRow):
        return LongestRow(length=len(checked.encoded.ids), location=checked.location)
    if checked.encoded is None and isinstance(checked.row, DataRow):
        return LongestRow(length=checked.characters, location=checked.location)
    return None


def _pick_longest(*candidates: LongestRow | None) -> LongestRow | None:
    return min((each for each in candidates if each is not None), key=lambda each: each.rank, default=None)


def _make_flagged(rows: Sequence[ExampleRow]) -> FlaggedRows:
    first = (FlaggedRows() + FlaggedRows(examples=tuple(rows))).examples
    examples = tuple(make_example(each.location, each.note, each.encoded) for each in first)
    return FlaggedRows(count=len(rows), examples=examples)


PROMPT, ANSWER, TEXT = "prompt", "answer", "text"


def list_texts(row: DataRow) -> Iterator[tuple[str, str]]:
    """Every text of the row with its role; a pair has a prompt and an answer."""
    if row.messages is not None and row.kind == "chat":
        for message in row.messages:
            content = message.get("content")
            if isinstance(content, str):
                yield str(message.get("role")), content
    for who, text in ((PROMPT, row.prompt), (ANSWER, row.completion), (TEXT, row.text)):
        if text is not None:
            yield who, text
