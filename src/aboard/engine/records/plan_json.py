"""A plan as JSON, for `plan.json` in the run directory and for scripts, without the values of secrets.

Common values are written once, so that the file stays small for a thousand nodes: a rank's environment is the plan's
`env`, then its node's, then its own; `argv`, `cwd`, `cores` and `beacon` default to those of its node.
"""

import json
from typing import Any

from aboard.core.cluster.container import Container, describe_container
from aboard.core.cluster.interpreter import encode_interpreter
from aboard.core.cluster.node import TransportKind
from aboard.core.plan.plan import Plan, Start
from aboard.core.secrets.secret_names import HIDDEN
from aboard.engine.records.plan_environment import PlanEnvironment, compare_environments
from aboard.engine.records.secret_redaction import PlanRedactor, build_redactor

SHARED = ("argv", "cwd", "cores", "beacon")


def format_plan_json(plan: Plan) -> str:
    """One node per line, so that the file is readable and works with grep."""
    hide = build_redactor(plan)
    env = compare_environments(plan, hide)
    head = {
        "run": plan.run,
        "world": plan.world,
        "program": {
            "kind": plan.program.kind.value,
            "target": hide(plan.program.target),
            "args": hide.hide_words(plan.program.args),
        },
        "master": {"node": plan.master.node, "address": plan.master.address, "port": plan.master.port},
        "secrets": sorted({name for _node, start in plan.starts() for name in start.secrets}),
        "env": dict(env.same),
    }
    lines = [f" {_dump_json(key)}: {_dump_json(value)}" for key, value in head.items()]
    nodes = [f"  {_dump_json(_describe_node(plan, env, place, hide))}" for place in range(len(plan.parts))]
    lines.append(' "nodes": [\n' + ",\n".join(nodes) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}"


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _describe_node(plan: Plan, environment: PlanEnvironment, place: int, redactor: PlanRedactor) -> dict[str, Any]:
    part = plan.parts[place]
    own = {name: values[place] for name, values in environment.of_node.items() if values[place] is not None}
    starts = [_describe_start(start, environment, redactor) for start in part.starts]
    same = {key: starts[0][key] for key in SHARED if all(start[key] == starts[0][key] for start in starts)}
    return {
        "name": part.node.name,
        "address": part.node.target,
        "local": part.node.transport is TransportKind.LOCAL,
        "transport": part.node.transport.value,
        **{key: value for key, value in (("user", part.node.user), ("port", part.node.port)) if value is not None},
        "interpreter": encode_interpreter(part.node.interpreter),
        **_describe_container(part.starts[0].container, redactor),
        "env": own,
        **same,
        "starts": [{key: value for key, value in start.items() if key not in same} for start in starts],
    }


def _describe_container(container: Container | None, redactor: PlanRedactor) -> dict[str, Any]:
    """Its Python and its variables are those of the ranks."""
    fields = describe_container(container).get("container", {})
    hidden = {
        name: redactor.hide_words(value) if isinstance(value, list) else redactor(value) if value else value
        for name, value in fields.items()
        if not isinstance(value, bool)
    }
    return {"container": {**fields, **hidden}} if fields else {}


def _describe_start(start: Start, environment: PlanEnvironment, redactor: PlanRedactor) -> dict[str, Any]:
    own = [name for name in start.env if name in environment.counted or name in environment.of_rank]
    return {
        "child": start.child,
        "rank": start.rank,
        "argv": redactor.hide_words(start.argv),
        "cwd": start.cwd and redactor(start.cwd),
        "cores": list(start.cores),
        "beacon": start.beacon,
        "env": {
            name: HIDDEN if name in start.secrets else redactor.hide_variable(name, start.env[name]) for name in own
        },
    }
