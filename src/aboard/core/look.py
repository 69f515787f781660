"""A look: what the nodes of a run answered at one moment, and all else by which it was judged and can be again."""

import json
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from aboard.core.event import Sample
from aboard.core.evidence import Evidence
from aboard.core.plan import Plan
from aboard.core.run import Run
from aboard.core.size import MIB
from aboard.core.stack import main_text
from aboard.core.witness import NodeWitness, decode_node
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

# What the answers of all nodes may take in a record. Eight ranks take some 100 KB, and stacks are most of it.
MOST_BYTES = 8 * MIB
# Of more ranks it is not even tried to keep all: to measure that takes as long as to judge it.
WHOLE_RANKS = 512
# Who is late is told by more than five collectives.
LAST_ENTRIES = 16
_OVER = 5
NO_ROOM = "its answer was not kept: there were too many"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one node told, as it came; `offset` is its clock less the head's."""

    told: Mapping[str, Any]
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Look:
    """`findings` is what was said of it then, by `version`. `ended` looks are the last at a run, when a rank has died.

    The run's state is not in it but in its events, among which `looked` with this number stands.
    """

    number: int
    at: float
    plan: Plan
    findings: tuple[Finding, ...]
    answers: Mapping[str, Answer] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)
    quiet: float | None = None
    usual: float | None = None
    pace: float | None = None
    said: Mapping[int, tuple[Untrusted, ...]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
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
            witness=witness_of(self.plan, self.answers),
            unheard=self.unheard,
            quiet=self.quiet,
            usual=self.usual,
            pace=self.pace,
            said=self.said,
        )


def witness_of(plan: Plan, answers: Mapping[str, Answer]) -> dict[str, NodeWitness]:
    """The answers as values: the one way, live and from a record."""
    parts = {part.node.name: part for part in plan.parts}
    return {
        name: decode_node(answer.told, {start.child: start.rank or 0 for start in parts[name].starts}, answer.offset)
        for name, answer in answers.items()
        if name in parts
    }


def look_at(
    evidence: Evidence,
    answers: Mapping[str, Answer],
    findings: tuple[Finding, ...],
    *,
    number: int,
    ended: bool = False,
) -> Look:
    """What to keep of a judgement, within bounds: whom it names comes first, and who had no room is said."""
    named = dict.fromkeys(node for finding in findings for node in finding.nodes)
    kept = _within(answers, named)
    left_out = {name: NO_ROOM for name in answers if name not in kept}
    return Look(
        number=number,
        at=evidence.now,
        plan=evidence.plan,
        findings=findings,
        answers=kept,
        unheard={**evidence.unheard, **left_out},
        quiet=evidence.quiet,
        usual=evidence.usual,
        pace=evidence.pace,
        said=evidence.said,
        samples=tuple(evidence.run.samples.values()),
        ended=ended,
    )


def _within(answers: Mapping[str, Answer], first: Collection[str]) -> dict[str, Answer]:
    """All as they came where they fit; else what is judged of each, and then as many nodes as there is room for."""
    crowd = sum(len(_children(answer)) for answer in answers.values()) > WHOLE_RANKS
    if crowd or sum(map(_size, answers.values())) > MOST_BYTES:
        answers = {name: _slim(answer) for name, answer in answers.items()}
    sizes = {name: _size(answer) for name, answer in answers.items()}
    kept: dict[str, Answer] = {}
    room = MOST_BYTES
    for name in sorted(answers, key=lambda name: name not in first):
        if sizes[name] <= room:
            kept[name] = answers[name]
            room -= sizes[name]
    return {name: kept[name] for name in answers if name in kept}


def _size(answer: Answer) -> int:
    return len(json.dumps(answer.told, default=str))


def _slim(answer: Answer) -> Answer:
    slim = {name: _slim_child(child) for name, child in _children(answer).items() if isinstance(child, dict)}
    return Answer(told={**answer.told, "children": slim}, offset=answer.offset)


def _children(answer: Answer) -> dict[str, Any]:
    found = answer.told.get("children")
    return found if isinstance(found, dict) else {}


def _slim_child(child: Mapping[str, Any]) -> dict[str, Any]:
    """Of its stacks the main thread, of its flight record what is open and the last ones."""
    slim = dict(child)
    if isinstance(child.get("stack"), str):
        slim["stack"] = main_text(child["stack"])
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
