"""A look as JSON and back. It may come from a stranger's archive: what is of another kind is left out, and bounded.

The answers are kept as they came and read where they are needed, by the reader that serves the wire too.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from aboard import __version__
from aboard.core.decoding import Key, Limit, try_decode
from aboard.core.event import Sample
from aboard.core.look import Answer, Look
from aboard.core.node import Node
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.program import Kind, Program
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass
from aboard.record.documents import MOST_NODES, MOST_RANKS, Findings, findings_document, recall_findings

_Nodes = Limit(MOST_NODES)
_Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class _Node:
    name: str = ""
    address: str | None = None
    fabric: str | None = None
    ranks: Annotated[Mapping[str, int], Limit(MOST_RANKS)] = field(default_factory=dict)

    def plan(self) -> NodePlan:
        node = Node(name=self.name, address=self.address, fabric_address=self.fabric)
        return NodePlan(
            node=node, starts=tuple(Start(child=child, argv=(), rank=rank) for child, rank in self.ranks.items())
        )


@dataclass(frozen=True, kw_only=True)
class _Look:
    number: int
    at: float
    nodes: Annotated[tuple[_Node, ...], _Nodes]
    master: Master = field(default_factory=lambda: Master(node="", address=""))
    run: str = ""
    findings: Findings = ()
    answers: Annotated[Mapping[str, Answer], _Nodes] = field(default_factory=dict)
    unheard: Annotated[Mapping[str, str], _Nodes] = field(default_factory=dict)
    quiet: float | None = None
    usual: float | None = None
    pace: float | None = None
    said: Annotated[Mapping[int, Annotated[tuple[Untrusted, ...], Limit(64, last=True)]], Limit(MOST_RANKS)] = field(
        default_factory=dict
    )
    samples: Annotated[tuple[tuple[str, str, float, _Figures], ...], Limit(MOST_RANKS + MOST_NODES)] = ()
    ended: bool = False
    version: Annotated[str, Key("aboard")] = ""


def look_document(look: Look) -> dict[str, Any]:
    plan = look.plan
    return {
        "number": look.number,
        "at": look.at,
        "aboard": __version__,
        "ended": look.ended,
        "run": plan.run,
        "findings": findings_document(look.findings),
        "master": {"node": plan.master.node, "address": plan.master.address, "port": plan.master.port},
        "nodes": [_node_words(part) for part in plan.parts],
        "quiet": look.quiet,
        "usual": look.usual,
        "pace": look.pace,
        "unheard": dict(look.unheard),
        "said": {str(rank): list(lines) for rank, lines in look.said.items()},
        "samples": [[each.node, each.child, each.at, dict(each.values)] for each in look.samples],
        "answers": {name: {"offset": answer.offset, "told": answer.told} for name, answer in look.answers.items()},
    }


def look_of(given: object, *, own: bool = False) -> Look | None:
    """None for what is no look; `own` says that it is of the user's own record."""
    look = try_decode(_Look, given)
    if look is None or not look.nodes or sum(len(node.ranks) for node in look.nodes) > MOST_RANKS:
        return None
    names = {node.name for node in look.nodes}
    return Look(
        number=look.number,
        at=look.at,
        plan=Plan(
            run=look.run,
            program=Program(kind=Kind.SCRIPT, target=""),
            master=look.master,
            parts=tuple(node.plan() for node in look.nodes),
        ),
        findings=recall_findings(look.findings, own=own),
        answers={name: answer for name, answer in look.answers.items() if name in names},
        unheard={name: why for name, why in look.unheard.items() if name in names},
        quiet=look.quiet,
        usual=look.usual,
        pace=look.pace,
        said=look.said,
        samples=tuple(
            Sample(node=node, child=child, at=at, values=values)
            for node, child, at, values in look.samples
            if node in names
        ),
        ended=look.ended,
        version=look.version,
    )


def _node_words(part: NodePlan) -> dict[str, Any]:
    """What evidence asks of a plan: who has which ranks, and which addresses."""
    node = part.node
    addresses = {"address": node.address, "fabric": node.fabric_address}
    return {
        "name": node.name,
        **{key: value for key, value in addresses.items() if value is not None},
        "ranks": {start.child: start.rank for start in part.starts},
    }
