"""Looks made by hand: evidence as nodes would have answered it over the wire, and the record of a run with it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence_builders import NOW
from made_events import made_event

from aboard.core.evidence.node_snapshot import ACTIVITIES, CollectiveRecord, NodeSnapshot, RankSnapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.snapshot import NodeAnswer, build_snapshot
from aboard.core.plan.plan import Plan
from aboard.core.run.events import Event
from aboard.core.run.rank_phases import BEACON_PHASES
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import encode_text
from aboard.doctor.judge_evidence import judge_evidence
from aboard.record.json_documents import build_findings_document
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record

RUN = "20261115-0800-brave-otter"
_PLAIN = (
    "load", "throttled", "others", "resent", "cores", "memory", "free", "limit", "held", "oom_kills", "oom_before",
    "hostname", "quota",
)  # fmt: skip


def answers_of(evidence: Evidence) -> dict[str, NodeAnswer]:
    """What the agents would have sent, so that it is read as it was made."""
    return {name: NodeAnswer(told=_told(node), offset=node.offset) for name, node in evidence.snapshots.items()}


def kept_run(
    folder: Path,
    evidence: Evidence,
    *,
    told: tuple[Finding, ...] | None = None,
    after: Iterable[Event] = (),
    ended: Iterable[Finding] | None = None,
    answers: Mapping[str, NodeAnswer] | None = None,
) -> RunDirectory:
    """The record of a run that came to this, was looked at, and judged by the watch or, if a rank has died, at its end.

    `told` is what was said of it, `after` what happened then, `ended` what was said at last.
    """
    run = RunDirectory(folder / RUN)
    run.make()
    record = Record.open(run, ranks=evidence.plan.world)
    record.write_plan(_plan(evidence.plan))
    for event in _events(evidence):
        record.event(event)
    findings = judge_evidence(evidence).findings if told is None else told
    died = any(child.dead for child in evidence.run.generation.children.values())
    given = answers_of(evidence) if answers is None else answers
    record.add_snapshot(build_snapshot(evidence, given, findings, number=1, ended=died))
    record.event(made_event("snapshot_judged", node="", at=NOW, number=1))
    if not died:
        record.event(verdict(findings[:1]))
    for event in after:
        record.event(event)
    if ended is not None:
        record.write_findings(ended)
    record.close()
    return run


def verdict(findings: Iterable[Finding]) -> Event:
    return made_event("verdict", node="", at=NOW, findings=build_findings_document(findings))


def stopped(evidence: Evidence) -> list[Event]:
    """The user has seen enough, and all ranks are ended."""
    conductor: list[tuple[str, dict[str, Any]]] = [
        ("stopping", {"why": "Ctrl-C"}),
        ("deciding", {"why": "Ctrl-C", "was_stopped": True}),
    ]
    exits = [
        made_event("exited", node=child.node, seq=9, at=NOW + 2, child=child.name, code=-15)
        for child in evidence.run.generation.children.values()
    ]
    last = made_event("finished", node="", at=NOW + 3, why="Ctrl-C", code=130)
    return [*(made_event(kind, node="", at=NOW + 1, **data) for kind, data in conductor), *exits, last]


def _events(evidence: Evidence) -> Iterable[Event]:
    words = {phase: word for word, phase in BEACON_PHASES.items()}
    generation = evidence.run.generation
    yield made_event("generation", node="", at=generation.at, number=generation.number)
    for name, place in generation.connections.items():
        yield made_event(place.state, node=name, at=place.at, why=place.why)
    for child in generation.children.values():
        yield made_event("started", node=child.node, seq=1, at=child.since - 1, child=child.name)
        if child.phase in words:
            data = {"phase": words[child.phase]}
            yield made_event("phase", node=child.node, seq=2, at=child.since, child=child.name, **data)


def _plan(plan: Plan) -> dict[str, Any]:
    nodes = [
        {"name": part.node.name, "starts": [{"child": start.child, "rank": start.rank} for start in part.starts]}
        for part in plan.parts
    ]
    return {"run": plan.run, "world": plan.world, "nodes": nodes}


def _told(node: NodeSnapshot) -> dict[str, Any]:
    answer = {
        "wall": node.at + node.offset,
        "node": {
            **{name: getattr(node, name) for name in _PLAIN},
            "neighbours": [asdict(each) for each in node.neighbours],
            "links": {each.name: asdict(each) for each in node.links},
            "addresses": [list(each) for each in node.addresses],
            "mounts": [list(each) for each in node.mounts],
            "disks": [asdict(each) for each in node.disks],
            "dials": [[host, port, outcome] for (host, port), outcome in node.dials.items()],
            "names": dict(node.names),
            "echoes": {to: [each.small, each.large, each.sent, each.lost] for to, each in node.echoes.items()},
            "kernel": None if node.kernel is None else list(node.kernel),
            "asked": node.hung,
        },
        "children": {str(rank): _child(seen) for rank, seen in node.ranks.items()},
    }
    told: dict[str, Any] = json.loads(json.dumps(answer, default=encode_text))
    return told


def _child(seen: RankSnapshot) -> dict[str, Any]:
    groups = {
        group.name: {
            "what": group.what,
            "enqueued": group.enqueued,
            "completed": group.completed,
            "entries": [_entry(entry) for entry in group.entries],
        }
        for group in seen.groups or ()
    }
    return {
        **(asdict(seen.process) if seen.process is not None else {}),
        "workers": [asdict(each) for each in seen.workers],
        "sockets": [asdict(each) for each in seen.sockets],
        "stack": seen.stack,
        "flight": {"groups": groups} if seen.groups is not None else {},
        "joining": asdict(seen.joining) if seen.joining is not None else {},
        "doing": ACTIVITIES.index(seen.doing),
    }


def _entry(entry: CollectiveRecord) -> list[Any]:
    row = [entry.seq, entry.seq, entry.p2p, entry.op, "", entry.over, entry.at * 1e9]
    return [*row, [json.loads(entry.sizes), [], list(entry.types)]] if entry.sizes else row
