"""A property that differs between nodes: which node has which value, and which differ from most."""

from collections import Counter
from collections.abc import Mapping

from aboard.core.cluster import node_sets
from aboard.core.text.input_text import agree, format_count
from aboard.diagnoses import Severity
from aboard.doctor.shared.majority import group_by_value
from aboard.lazy_dataclass import dataclass

# How many values one sentence lists.
_MAX_VALUES = 4


@dataclass(frozen=True, kw_only=True)
class NodeDifference:
    """A property whose value differs between nodes; None means that the node lacks it."""

    what: str
    values: Mapping[str, str | None]
    severity: Severity
    kind: str = "package"

    @property
    def usual(self) -> str | None:
        """What most nodes have."""
        return find_common_value(self.values)

    @property
    def odd(self) -> tuple[str, ...]:
        """The nodes that have something else."""
        return tuple(node for node, value in self.values.items() if value != self.usual)

    def by_value(self) -> dict[str | None, tuple[str, ...]]:
        """The nodes of each value, the rarest first."""
        return dict(sorted(group_by_value(self.values).items(), key=lambda group: group[0] == self.usual))

    def sentence(self) -> str:
        """Who has what: "torch: n3 has 2.6.0, n[1-2,4] have 2.7.1"."""
        groups = list(self.by_value().items())
        shown_groups = groups[: _MAX_VALUES - 1] + groups[-1:] if len(groups) > _MAX_VALUES else groups
        parts = [
            f"{node_sets.fold_names(nodes)} {agree(nodes, 'has', 'have')} {value or 'none'}"
            for value, nodes in shown_groups
        ]
        if len(groups) > _MAX_VALUES:
            parts.insert(-1, f"{format_count(len(groups) - _MAX_VALUES, 'more version')} elsewhere")
        return f"{self.what}: {', '.join(parts)}"


def find_common_value(values: Mapping[str, str | None]) -> str | None:
    """The most frequent value that isn't None; in a tie the first node's, where rank 0 runs."""
    counted = Counter(value for value in values.values() if value is not None)
    return max(counted, key=lambda value: counted[value], default=None)
