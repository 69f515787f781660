"""A check as JSON, for scripts: stable names, nothing drawn."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from aboard.checks import host
from aboard.core.facts import Facts
from aboard.core.finding import Finding
from aboard.core.probe import Probe
from aboard.core.reach import Reached

PROBES: tuple[Probe[Any], ...] = (host.KERNEL, host.CORES, host.MEMORY, host.ACCELERATORS)


def check_json(facts: Facts, findings: Iterable[Finding], seconds: float) -> str:
    return json.dumps(
        {
            "seconds": round(seconds, 3),
            "nodes": [_node(facts, node.name) for node in facts.cluster],
            "findings": [finding_json(finding) for finding in findings],
        },
        indent=2,
        ensure_ascii=False,
    )


def finding_json(finding: Finding) -> dict[str, Any]:
    fields = asdict(finding)
    fields["severity"] = finding.severity.word
    fields["consequences"] = [finding_json(consequence) for consequence in finding.consequences]
    return fields


def _node(facts: Facts, name: str) -> dict[str, Any]:
    contact = facts.contacts[name]
    fields: dict[str, Any] = {"name": name, "reached": isinstance(contact, Reached)}
    for key, value in asdict(contact).items():
        fields[key] = value.value if key == "reason" else value
    for probe in PROBES:
        fields[probe.name] = facts.of(probe).get(name)
    return fields
