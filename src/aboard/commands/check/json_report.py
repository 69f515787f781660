"""A check as JSON, with stable keys."""

from collections.abc import Iterable, Mapping
from typing import Any

from aboard.commands.shared.findings.subject_results import SubjectResult
from aboard.commands.shared.json_output import describe_interpreter, dump_json, to_plain_value
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding
from aboard.doctor.host import subject as host

# Also beside `facts`, for compatibility; null means unknown.
BASICS = (host.KERNEL, host.CORES, host.MEMORY, host.ACCELERATORS)


def format_check_json(
    facts: Facts, outcomes: Iterable[SubjectResult], findings: Iterable[Finding], seconds: float
) -> str:
    """Everything a check found: facts by node, results of multi-node probes, subjects and findings."""
    basics = {probe.name: facts.of(probe) for probe in BASICS}
    return dump_json(
        {
            "source": facts.cluster.source,
            "seconds": round(seconds, 3),
            "nodes": [_describe_node(facts, node, basics) for node in facts.cluster],
            "exercises": facts.outcomes,
            "subjects": {
                each.subject.name: {
                    "status": each.status.value,
                    "reason": each.reason,
                    "not_tested": dict(each.untested),
                }
                for each in outcomes
            },
            "findings": list(findings),
        }
    )


def _describe_node(facts: Facts, node: Node, basics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    contact = facts.contacts[node.name]
    return {
        "name": node.name,
        "reached": isinstance(contact, ReachedNode),
        **to_plain_value(contact),
        "interpreter": describe_interpreter(node),
        **{name: values.get(node.name) for name, values in basics.items()},
        "facts": {probe: by_node[node.name] for probe, by_node in facts.answers.items() if node.name in by_node},
    }
