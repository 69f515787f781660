"""How the environments of a plan's ranks differ: what is the same for all, a node's own, a rank's own, by pattern."""

from collections.abc import Callable, Mapping
from dataclasses import field

from aboard.core.plan.plan import NodePlan, Plan
from aboard.lazy_dataclass import dataclass
from aboard.ui.launch.secret_redaction import HIDDEN

Value = str | None


@dataclass(frozen=True, kw_only=True)
class PlanEnvironment:
    """Every name of every rank stands in exactly one of these.

    `counted` are names whose value is a number of the rank's, written `0-15`. In `of_node` and `of_rank` stand the
    values in the plan's order, None for who lacks the name.
    """

    same: Mapping[str, str] = field(default_factory=dict)
    counted: Mapping[str, str] = field(default_factory=dict)
    of_node: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    of_rank: Mapping[str, tuple[tuple[Value, ...], ...]] = field(default_factory=dict)


def compare_environments(plan: Plan, hide: Callable[[str], str]) -> PlanEnvironment:
    """Secrets are hidden here already: what has no value can't be told by mistake."""
    names = dict.fromkeys(name for _node, start in plan.starts() for name in start.env)
    same: dict[str, str] = {}
    counted: dict[str, str] = {}
    of_node: dict[str, tuple[Value, ...]] = {}
    of_rank: dict[str, tuple[tuple[Value, ...], ...]] = {}
    patterns = _list_patterns(plan.parts)
    for name in names:
        values = tuple(_list_values(part, name, hide) for part in plan.parts)
        first = values[0][0] if values[0] else None
        if first is not None and all(value == first for row in values for value in row):
            same[name] = first
        elif (pattern := next((written for written, rows in patterns if rows == values), None)) is not None:
            counted[name] = pattern
        elif all(len(set(row)) == 1 for row in values):
            of_node[name] = tuple(row[0] for row in values)
        else:
            of_rank[name] = values
    return PlanEnvironment(same=same, counted=counted, of_node=of_node, of_rank=of_rank)


def _list_values(part: NodePlan, name: str, hide: Callable[[str], str]) -> tuple[Value, ...]:
    return tuple(
        HIDDEN if name in start.secrets else hide(start.env[name]) if name in start.env else None
        for start in part.starts
    )


def _list_patterns(parts: tuple[NodePlan, ...]) -> list[tuple[str, tuple[tuple[str, ...], ...]]]:
    """By rank, by local rank, by node: the numbers that a launcher gives."""
    most = max(len(part.starts) for part in parts)
    world = sum(len(part.starts) for part in parts)
    return [
        (f"0-{world - 1}", tuple(tuple(str(start.rank) for start in part.starts) for part in parts)),
        (f"0-{most - 1}", tuple(tuple(str(local) for local in range(len(part.starts))) for part in parts)),
        (f"0-{len(parts) - 1}", tuple((str(index),) * len(part.starts) for index, part in enumerate(parts))),
    ]
