"""Compares the environments of a plan's ranks: variables common to all, per node, per rank, or numbered."""

from dataclasses import field

from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.secrets.secret_names import HIDDEN
from aboard.engine.records.secret_redaction import PlanRedactor
from aboard.lazy_dataclass import dataclass

Value = str | None


@dataclass(frozen=True, kw_only=True)
class PlanEnvironment:
    """Every variable is in exactly one of these.

    `counted` are variables whose value is a number of the rank, written `0-15`. `of_node` and `of_rank` have the values
    in the plan's order, None where the variable is not set.
    """

    same: dict[str, str] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)
    of_node: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    of_rank: dict[str, tuple[tuple[Value, ...], ...]] = field(default_factory=dict)


def compare_environments(plan: Plan, redactor: PlanRedactor) -> PlanEnvironment:
    """Secrets are replaced here, so that they cannot be printed by mistake."""
    names = dict.fromkeys(name for _node, start in plan.starts() for name in start.env)
    env = PlanEnvironment()
    patterns = _list_patterns(plan.parts)
    for name in names:
        values = tuple(_list_values(part, name, redactor) for part in plan.parts)
        first = values[0][0] if values[0] else None
        if first is not None and all(value == first for row in values for value in row):
            env.same[name] = first
        elif (pattern := next((written for written, rows in patterns if rows == values), None)) is not None:
            env.counted[name] = pattern
        elif all(len(set(row)) == 1 for row in values):
            env.of_node[name] = tuple(row[0] for row in values)
        else:
            env.of_rank[name] = values
    return env


def _list_values(node_plan: NodePlan, name: str, redactor: PlanRedactor) -> tuple[Value, ...]:
    return tuple(
        HIDDEN
        if name in start.secrets
        else redactor.hide_variable(name, start.env[name])
        if name in start.env
        else None
        for start in node_plan.starts
    )


def _list_patterns(parts: tuple[NodePlan, ...]) -> list[tuple[str, tuple[tuple[str, ...], ...]]]:
    """The numbers that a launcher assigns: by rank, by local rank, by node."""
    most = max(len(part.starts) for part in parts)
    world = sum(len(part.starts) for part in parts)
    return [
        (f"0-{world - 1}", tuple(tuple(str(start.rank) for start in part.starts) for part in parts)),
        (f"0-{most - 1}", tuple(tuple(str(local) for local in range(len(part.starts))) for part in parts)),
        (f"0-{len(parts) - 1}", tuple((str(index),) * len(part.starts) for index, part in enumerate(parts))),
    ]
