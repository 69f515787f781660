"""Whom a run waits for, told once for all that have the same reason: the dead first, then the silent, then the late."""

from collections.abc import Iterable

from aboard.core.duration import span
from aboard.core.nodeset import fold
from aboard.core.rankset import fold_ranks
from aboard.core.roster import Missing, Trouble
from aboard.lazy import dataclass
from aboard.ui.figures import many

# Above this, a list of ranks is a wall of digits.
RANKS_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nodes and ranks with one reason; `seconds` is the longest of them."""

    trouble: Trouble
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    why: str
    seconds: float

    @property
    def who(self) -> str:
        """`n7 rank 12-13`; a whole node that is out of reach by its name only."""
        nodes = fold(self.nodes)
        if self.trouble in {Trouble.GONE, Trouble.SILENT}:
            return nodes
        ranks = fold_ranks(self.ranks)
        return f"{nodes} rank {ranks}" if len(ranks) <= RANKS_SHOWN else f"{nodes} {many(len(self.ranks), 'rank')}"

    @property
    def said(self) -> str:
        """The reason and how long, as it follows a colon."""
        longest = "up to " * (len(self.nodes) > 1) + span(self.seconds)
        match self.trouble:
            case Trouble.DEAD:
                return f"died {longest} ago: {self.why}"
            case Trouble.LATE:
                return f"{self.why}, for {longest}"
            case _:
                word = self.trouble.name.lower()
                return f"{word} for {longest}{': ' if self.why else ''}{self.why}"


def waits(missing: Iterable[Missing], first: int | None = None) -> list[Wait]:
    """The worst first, and among the dead the one that has rank `first`, then who has been missing longest."""
    lots: dict[tuple[Trouble, str], list[Missing]] = {}
    for each in missing:
        lots.setdefault((each.trouble, each.why), []).append(each)
    found = [
        Wait(
            trouble=trouble,
            nodes=tuple(dict.fromkeys(each.node for each in lot)),
            ranks=tuple(rank for each in lot for rank in each.ranks),
            why=" ".join(why.split()),
            seconds=max(each.seconds for each in lot),
        )
        for (trouble, why), lot in lots.items()
    ]
    return sorted(found, key=lambda wait: (wait.trouble, first not in wait.ranks, -wait.seconds))
