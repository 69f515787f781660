"""A look as JSON and back. It may come from a stranger's archive: what is of another kind is left out, and bounded.

The answers are kept as they came and read where they are needed, by the reader that serves the wire too.
"""

from collections.abc import Mapping
from typing import Any

from aboard import __version__
from aboard.core.event import Sample
from aboard.core.look import Answer, Look
from aboard.core.node import Node
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.program import Kind, Program
from aboard.core.witness_words import number
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.catalogue import recall_diagnosis, recall_fix
from aboard.record.documents import findings_document

# More than any run of ours, and few enough to be judged.
MOST_RANKS = 32_768
_MOST_FINDINGS = 100
_MOST_NODES = 16_384
_DEEPEST = 3
_TEXT = 20_000
_SAID_LINES = 64
_DIGITS = 9


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
        "samples": [[each.node, each.child, each.at, _figures(each.values)] for each in look.samples],
        "answers": {name: {"offset": answer.offset, "told": answer.told} for name, answer in look.answers.items()},
    }


def look_of(given: object) -> Look | None:
    """None for what is no look."""
    whole = _object(given)
    count, at, plan = whole.get("number"), number(whole.get("at")), _plan(whole)
    if plan is None or at is None or not isinstance(count, int):
        return None
    names = {part.node.name for part in plan.parts}
    return Look(
        number=count,
        at=at,
        plan=plan,
        findings=findings_of(whole.get("findings")),
        answers={
            name: Answer(told=_object(each.get("told")), offset=number(each.get("offset")) or 0.0)
            for name, each in _object(whole.get("answers")).items()
            if name in names and isinstance(each, dict)
        },
        unheard={name: _text(why) for name, why in _object(whole.get("unheard")).items() if name in names},
        quiet=number(whole.get("quiet")),
        usual=number(whole.get("usual")),
        pace=number(whole.get("pace")),
        said={
            int(rank): tuple(map(_text, lines[-_SAID_LINES:]))
            for rank, lines in _object(whole.get("said")).items()
            if rank.isdecimal() and len(rank) <= _DIGITS and isinstance(lines, list)
        },
        samples=_samples(whole.get("samples"), names),
        ended=whole.get("ended") is True,
        version=_text(whole.get("aboard")),
    )


def findings_of(given: object, deep: int = 0) -> tuple[Finding, ...]:
    """Those that are findings; consequences of consequences end somewhere."""
    every = given[:_MOST_FINDINGS] if isinstance(given, list) and deep < _DEEPEST else []
    return tuple(_finding(each, deep) for each in every if isinstance(each, dict) and _severity(each) is not None)


def _finding(given: Mapping[str, Any], deep: int) -> Finding:
    nodes, ranks = given.get("nodes"), given.get("ranks")
    return Finding(
        diagnosis=recall_diagnosis(_text(given.get("code"))),
        severity=_severity(given) or Severity.INFO,
        nodes=tuple(map(_text, nodes[:_MOST_NODES])) if isinstance(nodes, list) else (),
        ranks=tuple(rank for rank in ranks[:MOST_RANKS] if isinstance(rank, int)) if isinstance(ranks, list) else (),
        seen=_text(given.get("seen")),
        why=_text(given.get("why")),
        fix=recall_fix(_text(given.get("code")), _text(given.get("fix"))),
        consequences=findings_of(given.get("consequences"), deep + 1),
    )


def _severity(given: Mapping[str, Any]) -> Severity | None:
    word = given.get("severity")
    return next((each for each in Severity if each.word == word), None)


def _node_words(part: NodePlan) -> dict[str, Any]:
    """What evidence asks of a plan: who has which ranks, and which addresses."""
    node = part.node
    addresses = {"address": node.address, "fabric": node.fabric_address}
    return {
        "name": node.name,
        **{key: value for key, value in addresses.items() if value is not None},
        "ranks": {start.child: start.rank for start in part.starts},
    }


def _plan(whole: Mapping[str, Any]) -> Plan | None:
    given = whole.get("nodes")
    nodes = [each for each in given[:_MOST_NODES] if isinstance(each, dict)] if isinstance(given, list) else []
    if not nodes or sum(len(_object(node.get("ranks"))) for node in nodes) > MOST_RANKS:
        return None
    master = _object(whole.get("master"))
    port = master.get("port")
    return Plan(
        run=_text(whole.get("run")),
        program=Program(kind=Kind.SCRIPT, target=""),
        master=Master(
            node=_text(master.get("node")),
            address=_text(master.get("address")),
            port=port if isinstance(port, int) else 0,
        ),
        parts=tuple(_part(node) for node in nodes),
    )


def _part(given: Mapping[str, Any]) -> NodePlan:
    address, fabric = given.get("address"), given.get("fabric")
    return NodePlan(
        node=Node(
            name=_text(given.get("name")),
            address=_text(address) if address is not None else None,
            fabric_address=_text(fabric) if fabric is not None else None,
        ),
        starts=tuple(
            Start(child=child, argv=(), rank=rank)
            for child, rank in _object(given.get("ranks")).items()
            if isinstance(rank, int)
        ),
    )


def _samples(given: object, nodes: set[str]) -> tuple[Sample, ...]:
    """Rows of node, child, time and figures: the last that was known of each when one looked."""
    found: list[Sample] = []
    for row in given[: MOST_RANKS + _MOST_NODES] if isinstance(given, list) else ():
        match row:
            case [str(node), str(child), int() | float() as at, dict(values)] if node in nodes:
                found.append(Sample(node=node, child=child, at=float(at), values=_figures(values)))
    return tuple(found)


def _figures(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: figure for name, each in given.items() if (figure := number(each)) is not None}


def _object(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _text(given: object) -> str:
    return given[:_TEXT] if isinstance(given, str) else ""
