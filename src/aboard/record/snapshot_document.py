"""Encodes and decodes snapshots as JSON, possibly from an untrusted bundle: invalid parts are dropped, sizes limited.

Replies are stored unchanged, and decoded where needed by the transport's decoder.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from aboard import __version__
from aboard.core.cluster.node import Node
from aboard.core.decoding import JsonKey, MaxLength, try_decode
from aboard.core.evidence.snapshot import NodeAnswer, Snapshot
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Measurement
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import MOST_NODES, MOST_RANKS, Findings, build_findings_document, recall_findings

_Nodes = MaxLength(MOST_NODES)
_Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class _NodeDocument:
    name: str = ""
    address: str | None = None
    fabric: str | None = None
    ranks: Annotated[Mapping[str, int], MaxLength(MOST_RANKS)] = field(default_factory=dict)

    def plan(self) -> NodePlan:
        node = Node(name=self.name, address=self.address, fabric_address=self.fabric)
        return NodePlan(
            node=node, starts=tuple(Start(child=child, argv=(), rank=rank) for child, rank in self.ranks.items())
        )


@dataclass(frozen=True, kw_only=True)
class _SnapshotDocument:
    number: int
    at: float
    nodes: Annotated[tuple[_NodeDocument, ...], _Nodes]
    master: MasterAddress = field(default_factory=lambda: MasterAddress(node="", address=""))
    run: str = ""
    findings: Findings = ()
    answers: Annotated[Mapping[str, NodeAnswer], _Nodes] = field(default_factory=dict)
    unheard: Annotated[Mapping[str, str], _Nodes] = field(default_factory=dict)
    quiet: float | None = None
    usual: float | None = None
    pace: float | None = None
    said: Annotated[Mapping[int, Annotated[tuple[Untrusted, ...], MaxLength(64, last=True)]], MaxLength(MOST_RANKS)] = (
        field(default_factory=dict)
    )
    samples: Annotated[tuple[tuple[str, str, float, _Figures], ...], MaxLength(MOST_RANKS + MOST_NODES)] = ()
    ended: bool = False
    version: Annotated[str, JsonKey("aboard")] = ""


def encode_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    plan = snapshot.plan
    return {
        "number": snapshot.number,
        "at": snapshot.at,
        "aboard": __version__,
        "ended": snapshot.ended,
        "run": plan.run,
        "findings": build_findings_document(snapshot.findings),
        "master": {"node": plan.master.node, "address": plan.master.address, "port": plan.master.port},
        "nodes": [_encode_node(part) for part in plan.parts],
        "quiet": snapshot.quiet,
        "usual": snapshot.usual,
        "pace": snapshot.pace,
        "unheard": dict(snapshot.unheard),
        "said": {str(rank): list(lines) for rank, lines in snapshot.last_lines.items()},
        "samples": [[each.node, each.child, each.at, dict(each.values)] for each in snapshot.samples],
        "answers": {name: {"offset": answer.offset, "told": answer.told} for name, answer in snapshot.answers.items()},
    }


def decode_snapshot(content: object, *, own: bool = False) -> Snapshot | None:
    """Decodes a snapshot, or returns None; `own` says that it is from the user's own record."""
    document = try_decode(_SnapshotDocument, content)
    if document is None or not document.nodes or sum(len(node.ranks) for node in document.nodes) > MOST_RANKS:
        return None
    names = {node.name for node in document.nodes}
    return Snapshot(
        number=document.number,
        at=document.at,
        plan=Plan(
            run=document.run,
            program=Program(kind=ProgramKind.SCRIPT, target=""),
            master=document.master,
            parts=tuple(node.plan() for node in document.nodes),
        ),
        findings=recall_findings(document.findings, own=own),
        answers={name: answer for name, answer in document.answers.items() if name in names},
        unheard={name: why for name, why in document.unheard.items() if name in names},
        quiet=document.quiet,
        usual=document.usual,
        pace=document.pace,
        last_lines=document.said,
        samples=tuple(
            Measurement(node=node, child=child, at=at, values=values)
            for node, child, at, values in document.samples
            if node in names
        ),
        ended=document.ended,
        version=document.version,
    )


def _encode_node(node_plan: NodePlan) -> dict[str, Any]:
    """The parts of a plan that evidence needs: the ranks and addresses of each node."""
    node = node_plan.node
    addresses = {"address": node.address, "fabric": node.fabric_address}
    return {
        "name": node.name,
        **{key: value for key, value in addresses.items() if value is not None},
        "ranks": {start.child: start.rank for start in node_plan.starts},
    }
