"""A check as JSON, for scripts: stable names, nothing drawn."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from aboard.checks import host
from aboard.core.facts import Facts, Unknown
from aboard.core.node import Node
from aboard.core.reach import Reached
from aboard.diagnoses import Diagnosis, Finding, Severity
from aboard.diagnoses.untrusted import Untrusted, visible_lines
from aboard.ui.verdict import Outcome

# Stand beside `facts` as well, where they have been from the beginning; null is what isn't known.
BASICS = (host.KERNEL, host.CORES, host.MEMORY, host.ACCELERATORS)
# Characters of a text from outside.
_SHOWN = 4096


def check_json(facts: Facts, outcomes: Iterable[Outcome], findings: Iterable[Finding], seconds: float) -> str:
    """All that was asked and answered: each probe's facts by node, each exercise's outcome, subjects and findings."""
    basics = {probe.name: facts.of(probe) for probe in BASICS}
    return dump_json(
        {
            "source": facts.cluster.source,
            "seconds": round(seconds, 3),
            "nodes": [_node(facts, node, basics) for node in facts.cluster],
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


def dump_json(value: Any) -> str:
    """What `--json` prints, of anything that `as_plain` takes."""
    return json.dumps(as_plain(value), indent=2, ensure_ascii=False)


def as_plain(value: Any) -> Any:
    """Any fact as JSON has it; an unknown says why, and a number that is none is null.

    No text in it holds what a terminal would obey, except for line ends in texts of ours, such as a fix.
    """
    plain: Any
    match value:
        case Enum():
            plain = value.word if isinstance(value, Severity) else as_plain(value.value)
        case str() | Untrusted():
            plain = _text(value)
        case None | int():
            plain = value
        case float():
            plain = value if math.isfinite(value) else None
        case Unknown(why=why):
            plain = {"unknown": why}
        case Mapping():
            plain = {_key(key): as_plain(each) for key, each in value.items()}
        case AbstractSet():
            plain = sorted((as_plain(each) for each in value), key=str)
        case Iterable():
            plain = [as_plain(each) for each in value]
        case _ if is_dataclass(value):
            plain = {name: as_plain(each) for name, each in _named(value)}
        case _:
            plain = str(value)
    return plain


def _text(value: str | Untrusted) -> str:
    if isinstance(value, Untrusted):
        return value.visible(_SHOWN)
    return visible_lines(value)


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a value; of the diagnosis of a finding, its code."""
    for field in fields(value):
        given = getattr(value, field.name)
        yield ("code", given.code) if isinstance(given, Diagnosis) else (field.name, given)


def interpreter_json(node: Node) -> dict[str, str] | None:
    """What ranks run on a node, and why; null where that was not chosen."""
    return None if (found := node.interpreter) is None else {"path": found.path, "origin": found.origin.value}


def _key(key: Any) -> str:
    """A pair of nodes, say, is the two names with a blank between, which no name holds."""
    return " ".join(map(_key, key)) if isinstance(key, tuple) else str(as_plain(key))


def _node(facts: Facts, node: Node, basics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    contact = facts.contacts[node.name]
    return {
        "name": node.name,
        "reached": isinstance(contact, Reached),
        **as_plain(contact),
        "interpreter": interpreter_json(node),
        **{name: values.get(node.name) for name, values in basics.items()},
        "facts": {probe: given[node.name] for probe, given in facts.answers.items() if node.name in given},
    }
