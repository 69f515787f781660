"""What was counted over some rows; two tallies add up to that of all their rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TypeAlias

from aboard.data.gate.prints import Prints, prints_of
from aboard.data.gate.seen import Example, Seen, example
from aboard.data.gate.terms import Terms
from aboard.data.rows import Broken, Encoded, Row, Where
from aboard.data.stats import Lengths, lengths_of
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

# A sign, and what is to be told of it where it was seen.
Sign: TypeAlias = tuple[str, Untrusted]


@dataclass(frozen=True, kw_only=True)
class Item:
    """A row and what became of it: its tokens, why there are none, or neither where no tokenizer was given."""

    row: Row | Broken
    encoded: Encoded | Broken | None = None

    @property
    def where(self) -> Where:
        return self.row.where

    @cached_property
    def broken(self) -> Broken | None:
        if isinstance(self.row, Broken):
            return self.row
        return self.encoded if isinstance(self.encoded, Broken) else None

    @cached_property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Who says what; nothing where the row is broken."""
        return tuple(texts(self.row)) if isinstance(self.row, Row) else ()

    @property
    def characters(self) -> int:
        return sum(len(text) for _who, text in self.texts)


# Looks at one row and names its signs; run where rows are read, so it must be cheap.
Look: TypeAlias = Callable[[Item, Terms], Iterator[Sign]]


@dataclass(frozen=True, kw_only=True)
class Longest:
    """The longest row, and the first of those that are as long."""

    length: int
    where: Where

    @property
    def rank(self) -> tuple[int, Untrusted, int]:
        """Least for the longest; equally long rows by their place, so that the order of adding doesn't matter."""
        return -self.length, self.where.file, self.where.line


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts over rows; `by_kind` and `supervised` are tokens of rows that were encoded, `characters` of all read."""

    rows: int = 0
    broken: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    signs: Mapping[str, Seen] = field(default_factory=dict)
    characters: Lengths = field(default_factory=Lengths)
    by_kind: Mapping[str, Lengths] = field(default_factory=dict)
    supervised: int = 0
    longest: Longest | None = None
    prints: Prints = field(default_factory=Prints)

    def __add__(self, other: "Tally") -> "Tally":
        kinds, signs = dict(self.kinds), dict(self.signs)
        for kind, count in other.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
        for name, seen in other.signs.items():
            signs[name] = signs.get(name, Seen()) + seen
        return Tally(
            rows=self.rows + other.rows,
            broken=self.broken + other.broken,
            kinds=kinds,
            signs=signs,
            characters=self.characters + other.characters,
            by_kind={
                kind: self.by_kind.get(kind, Lengths()) + other.by_kind.get(kind, Lengths())
                for kind in {**self.by_kind, **other.by_kind}
            },
            supervised=self.supervised + other.supervised,
            longest=_longer(self.longest, other.longest),
            prints=self.prints + other.prints,
        )

    def seen(self, name: str) -> Seen:
        return self.signs.get(name, Seen())

    @cached_property
    def tokens(self) -> Lengths:
        return sum(self.by_kind.values(), Lengths())

    @property
    def encoded(self) -> int:
        return self.tokens.rows

    def of(self, *kinds: str) -> int:
        return sum(self.kinds.get(kind, 0) for kind in kinds)


def count(items: Iterable[Item], terms: Terms, looks: Sequence[Look], *, prints: bool = True) -> Tally:
    """One look at each row; fingerprints take a while, and are left out where others are at hand."""
    every = list(items)
    kinds: dict[str, int] = {}
    counts: dict[str, int] = {}
    examples: dict[str, list[Example]] = {}
    for item in every:
        for look in looks:
            for name, note in look(item, terms):
                counts[name] = counts.get(name, 0) + 1
                # All of them are looked through below: rows need not come in the order of their lines.
                examples.setdefault(name, []).append(Example(where=item.where, note=note, encoded=_tokens(item)))
        if isinstance(item.row, Row):
            kinds[item.row.kind] = kinds.get(item.row.kind, 0) + 1
    rows = [item.row for item in every if isinstance(item.row, Row)]
    encoded: dict[str, list[Encoded]] = {}
    for item in every:
        if isinstance(item.row, Row) and isinstance(item.encoded, Encoded):
            encoded.setdefault(item.row.kind, []).append(item.encoded)
    return Tally(
        rows=len(every),
        broken=sum(item.broken is not None for item in every),
        kinds=kinds,
        signs={name: _seen(counts[name], examples[name]) for name in counts},
        characters=lengths_of(item.characters for item in every if isinstance(item.row, Row)),
        by_kind={kind: lengths_of(len(each.ids) for each in lot) for kind, lot in encoded.items()},
        supervised=sum(int(each.mask.sum()) for lot in encoded.values() for each in lot),
        longest=_longer(*map(_longest, every)),
        prints=prints_of(rows) if prints else Prints(),
    )


def _longest(item: Item) -> Longest | None:
    if isinstance(item.encoded, Encoded):
        return Longest(length=len(item.encoded.ids), where=item.where)
    if item.encoded is None and isinstance(item.row, Row):
        return Longest(length=item.characters, where=item.where)
    return None


def _longer(*found: Longest | None) -> Longest | None:
    return min((each for each in found if each is not None), key=lambda each: each.rank, default=None)


def _tokens(item: Item) -> Encoded | None:
    return item.encoded if isinstance(item.encoded, Encoded) else None


def _seen(number: int, examples: Iterable[Example]) -> Seen:
    first = (Seen() + Seen(count=number, examples=tuple(examples))).examples
    return Seen(count=number, examples=tuple(example(each.where, each.note, each.encoded) for each in first))


PROMPT, ANSWER, TEXT = "prompt", "answer", "text"


def texts(row: Row) -> Iterator[tuple[str, str]]:
    """Every text that the user's file has for this row, with its role; a pair's are a prompt and an answer."""
    if row.messages is not None and row.kind == "chat":
        for message in row.messages:
            content = message.get("content")
            if isinstance(content, str):
                yield str(message.get("role")), content
    for who, text in ((PROMPT, row.prompt), (ANSWER, row.completion), (TEXT, row.text)):
        if text is not None:
            yield who, text
