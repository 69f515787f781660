"""Whom a run waits for, told once for all that have the same reason: the dead first, then the silent, then the late."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from aboard.core.nodeset import fold
from aboard.core.phase import Phase
from aboard.core.rankset import fold_ranks
from aboard.core.roster import Missing
from aboard.ui.figures import many, span

# Above this, a list of ranks is a wall of digits.
RANKS_SHOWN = 40


class Kind(IntEnum):
    """What is the matter, the worst first: a rank that died, a node out of reach, a rank that is merely behind."""

    DEAD = 0
    GONE = 1
    SILENT = 2
    LATE = 3


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nodes and ranks with one reason; `seconds` is the longest of them."""

    kind: Kind
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    why: str
    seconds: float

    @property
    def who(self) -> str:
        """`n7 rank 12-13`; a whole node that is out of reach by its name only."""
        nodes = fold(self.nodes)
        if self.kind in {Kind.GONE, Kind.SILENT}:
            return nodes
        ranks = fold_ranks(self.ranks)
        return f"{nodes} rank {ranks}" if len(ranks) <= RANKS_SHOWN else f"{nodes} {many(len(self.ranks), 'rank')}"

    @property
    def said(self) -> str:
        """The reason and how long, as it follows a colon."""
        longest = "up to " * (len(self.nodes) > 1) + span(self.seconds)
        match self.kind:
            case Kind.DEAD:
                return f"died {longest} ago: {self.why}"
            case Kind.LATE:
                return f"{self.why}, for {longest}"
            case _:
                word = self.kind.name.lower()
                return f"{word} for {longest}{': ' if self.why else ''}{self.why}"


def kind_of(missing: Missing) -> Kind:
    if missing.why.startswith("gone:"):
        return Kind.GONE
    if missing.why.startswith("silent:"):
        return Kind.SILENT
    return Kind.LATE if missing.why in _BEHIND else Kind.DEAD


def waits(missing: Iterable[Missing], first: int | None = None) -> list[Wait]:
    """The worst first, and among the dead the one that has rank `first`, then who has been missing longest."""
    lots: dict[tuple[Kind, str], list[Missing]] = {}
    for each in missing:
        lots.setdefault((kind_of(each), each.why), []).append(each)
    found = [
        Wait(
            kind=kind,
            nodes=tuple(dict.fromkeys(each.node for each in lot)),
            ranks=tuple(rank for each in lot for rank in each.ranks),
            why=" ".join(why.partition(":")[2].split() if kind in {Kind.GONE, Kind.SILENT} else why.split()),
            seconds=max(each.seconds for each in lot),
        )
        for (kind, why), lot in lots.items()
    ]
    return sorted(found, key=lambda wait: (wait.kind, first not in wait.ranks, -wait.seconds))


_BEHIND = frozenset({"not started yet", *(phase.word for phase in Phase)})
