"""A snapshot: the nodes' replies at one moment, and everything else needed to diagnose the run again."""

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

# The limit of all replies in a record. Eight ranks take about 100 KB, mostly stacks.
MOST_BYTES = 8 * MIB
# With more ranks, replies are always reduced: measuring their size takes as long as judging them.
WHOLE_RANKS = 512
# Lateness needs more than five collectives.
LAST_ENTRIES = 16
_OVER = 5
NO_ROOM = "its reply was not recorded: too many nodes"


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """One node's reply, unchanged; `offset` is its clock minus the head's."""

    told: Mapping[str, Any]
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """`findings` were reported then, by `version`. An `ended` snapshot is a run's last, taken when a rank has died.

    The run's state is in its events: the `snapshot_judged` event with this number marks the place.
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
    last_lines: Mapping[int, tuple[Untrusted, ...]] = field(default_factory=dict)
    samples: tuple[Measurement, ...] = ()
    ended: bool = False
    version: str = ""

    def evidence(self, run: Run, tails: Mapping[int, tuple[Untrusted, ...]]) -> Evidence:
        """The evidence of that moment. `run` is the fold of the events before it, and gets its measurements."""
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
            last_lines=self.last_lines,
        )


def decode_answers(plan: Plan, answers: Mapping[str, NodeAnswer]) -> dict[str, NodeSnapshot]:
    """Decodes the replies, the same way live and from a record."""
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
    """The snapshot to record, limited in size: nodes named in the verdict come first, and omitted ones are listed."""
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
        last_lines=evidence.last_lines,
        samples=tuple(evidence.run.samples.values()),
        ended=ended,
    )


def _limit_answers(answers: Mapping[str, NodeAnswer], first: Collection[str]) -> dict[str, NodeAnswer]:
    """All replies unchanged if they fit; else the judged part of each, for as many nodes as fit."""
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
    """Keeps the main thread of its stack, and the open and the last entries of its flight record."""
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
    """The beacon's sixth field says whether it is over."""
    return isinstance(entry, list) and len(entry) > _OVER and entry[_OVER] is not True
