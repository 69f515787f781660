"""A look: what the nodes of a run answered at one moment, and all else by which it was judged and can be again."""

import json
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from aboard.core.evidence.node_snapshot import NodeSnapshot, decode_node_snapshot
from aboard.core.evidence.python_stacks import extract_main_thread
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.plan.plan import Plan
from aboard.core.run.events import Measurement
from aboard.core.run.run_state import Run
from aboard.core.text.byte_sizes import MIB
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

# What the answers of all nodes may take in a record. Eight ranks take some 100 KB, and stacks are most of it.
MOST_BYTES = 8 * MIB
# Of more ranks it is not even tried to keep all: to measure that takes as long as to judge it.
WHOLE_RANKS = 512
# Who is late is told by more than five collectives.
LAST_ENTRIES = 16
_OVER = 5
NO_ROOM = "its reply was not recorded: too many nodes"


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What one node told, as it came; `offset` is its clock less the head's."""

    told: Mapping[str, Any]
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """`findings` is what was said of it then, by `version`. `ended` looks are the last at a run, when a rank has died.

    The run's state is not in it but in its events, among which `looked` with this number stands.
    """

    number: int
    at: float
    plan: Plan
    findings: tuple[Finding, ...]
    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)
    quiet: float | None = None
    usual: float | None = None
    pace: float | None = None
    said: Mapping[int, tuple[Untrusted, ...]] = field(default_factory=dict)
    samples: tuple[Measurement, ...] = ()
    ended: bool = False
    version: str = ""

    def evidence(self, run: Run, tails: Mapping[int, tuple[Untrusted, ...]]) -> Evidence:
        """What it was judged by. `run` is the fold of the events up to it; it gets the figures of that moment."""
        for sample in self.samples:
            run.take(sample)
        return Evidence(
            plan=self.plan,
            run=run,
            tails=tails,
            now=self.at,
            snapshots=decode_answers(self.plan, self.answers),
            unheard=self.unheard,
            quiet=self.quiet,
            usual=self.usual,
            pace=self.pace,
            said=self.said,
        )


def decode_answers(plan: Plan, answers: Mapping[str, NodeAnswer]) -> dict[str, NodeSnapshot]:
    """The answers as values: the one way, live and from a record."""
    parts = {part.node.name: part for part in plan.parts}
    return {
        name: decode_node_snapshot(
            answer.told, {start.child: start.rank or 0 for start in parts[name].starts}, answer.offset
        )
        for name, answer in answers.items()
        if name in parts
    }


def build_snapshot(
    evidence: Evidence,
    answers: Mapping[str, NodeAnswer],
    findings: tuple[Finding, ...],
    *,
    number: int,
    ended: bool = False,
) -> Snapshot:
    """What to keep of a judgement, within bounds: whom it names comes first, and who had no room is said."""
    named_nodes = dict.fromkeys(node for finding in findings for node in finding.nodes)
    recorded = _limit_answers(answers, named_nodes)
    left_out = {name: NO_ROOM for name in answers if name not in recorded}
    return Snapshot(
        number=number,
        at=evidence.now,
        plan=evidence.plan,
        findings=findings,
        answers=recorded,
        unheard={**evidence.unheard, **left_out},
        quiet=evidence.quiet,
        usual=evidence.usual,
        pace=evidence.pace,
        said=evidence.said,
        samples=tuple(evidence.run.samples.values()),
        ended=ended,
    )


def _limit_answers(answers: Mapping[str, NodeAnswer], first: Collection[str]) -> dict[str, NodeAnswer]:
    """All as they came where they fit; else what is judged of each, and then as many nodes as there is room for."""
    crowd = sum(len(_get_children(answer)) for answer in answers.values()) > WHOLE_RANKS
    if crowd or sum(map(_measure_answer, answers.values())) > MOST_BYTES:
        answers = {name: _slim_answer(answer) for name, answer in answers.items()}
    sizes = {name: _measure_answer(answer) for name, answer in answers.items()}
    chosen: dict[str, NodeAnswer] = {}
    room = MOST_BYTES
    for name in sorted(answers, key=lambda name: name not in first):
        if sizes[name] <= room:
            chosen[name] = answers[name]
            room -= sizes[name]
    return {name: chosen[name] for name in answers if name in chosen}


def _measure_answer(answer: NodeAnswer) -> int:
    return len(json.dumps(answer.told, default=str))


def _slim_answer(answer: NodeAnswer) -> NodeAnswer:
    slim = {name: _slim_child(child) for name, child in _get_children(answer).items() if isinstance(child, dict)}
    return NodeAnswer(told={**answer.told, "children": slim}, offset=answer.offset)


def _get_children(answer: NodeAnswer) -> dict[str, Any]:
    children = answer.told.get("children")
    return children if isinstance(children, dict) else {}


def _slim_child(child: Mapping[str, Any]) -> dict[str, Any]:
    """Of its stacks the main thread, of its flight record what is open and the last ones."""
    slim = dict(child)
    if isinstance(child.get("stack"), str):
        slim["stack"] = extract_main_thread(child["stack"])
    match child.get("flight"):
        case {"groups": dict(groups)}:
            slim["flight"] = {"groups": {name: _slim_group(group) for name, group in groups.items()}}
    return slim


def _slim_group(group: Any) -> Any:
    match group:
        case {"entries": list(entries)}:
            return {**group, "entries": [*filter(_is_open, entries[:-LAST_ENTRIES]), *entries[-LAST_ENTRIES:]]}
    return group


def _is_open(entry: Any) -> bool:
    """As the beacon writes it: the sixth says whether it is over."""
    return isinstance(entry, list) and len(entry) > _OVER and entry[_OVER] is not True
