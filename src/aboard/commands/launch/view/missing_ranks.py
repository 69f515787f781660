"""The nodes and ranks that a run waits for, grouped by reason: the dead first, then the silent, then the late."""

from collections.abc import Iterable

from aboard.commands.shared.number_format import format_count
from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.run_progress import MissingRanks, MissingReason
from aboard.core.text.durations import format_duration
from aboard.core.text.rank_sets import fold_ranks, name_ranks
from aboard.lazy_dataclass import dataclass

# Above this, a list of ranks is a wall of digits.
RANKS_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class MissingGroup:
    """Nodes and ranks with the same reason; `seconds` is the longest wait."""

    trouble: MissingReason
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    why: str
    seconds: float

    @property
    def who(self) -> str:
        """`n7 ranks 12-13`, or only the name of a node that is out of reach."""
        nodes = fold_names(self.nodes)
        if self.trouble in {MissingReason.GONE, MissingReason.SILENT}:
            return nodes
        ranks = fold_ranks(self.ranks)
        if len(ranks) > RANKS_SHOWN:
            return f"{nodes} {format_count(len(self.ranks), 'rank')}"
        return f"{nodes} {name_ranks(self.ranks)}"

    @property
    def reason(self) -> str:
        """The reason and its duration, with the punctuation that follows `who`."""
        longest = "up to " * (len(self.nodes) > 1) + format_duration(self.seconds)
        match self.trouble:
            case MissingReason.DEAD:
                return f", {self.why}, {longest} ago"
            case MissingReason.LATE:
                return f": {self.why}, for {longest}"
            case _:
                word = self.trouble.name.lower()
                return f": {word} for {longest}{': ' if self.why else ''}{self.why}"


def group_missing(missing: Iterable[MissingRanks], first: int | None = None) -> list[MissingGroup]:
    """Groups by reason: the worst first, among the dead the group with rank `first`, then the longest missing."""
    by_reason: dict[tuple[MissingReason, str], list[MissingRanks]] = {}
    for each in missing:
        by_reason.setdefault((each.trouble, each.why), []).append(each)
    groups = [
        MissingGroup(
            trouble=trouble,
            nodes=tuple(dict.fromkeys(each.node for each in group)),
            ranks=tuple(rank for each in group for rank in each.ranks),
            why=" ".join(why.split()),
            seconds=max(each.seconds for each in group),
        )
        for (trouble, why), group in by_reason.items()
    ]
    return sorted(groups, key=lambda wait: (wait.trouble, first not in wait.ranks, -wait.seconds))
