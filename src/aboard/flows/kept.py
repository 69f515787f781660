"""What a record holds, as values. It may be a stranger's: it is read as data, part by part, each up to a limit."""

import io
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from aboard.core.event import Event
from aboard.core.evidence import TAIL_BYTES, last_lines
from aboard.core.look import Look
from aboard.core.node import Node
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.program import Kind, Program
from aboard.core.size import KIB, MIB
from aboard.core.words import MAX_PORT, host_trouble, user_trouble
from aboard.diagnoses import Finding
from aboard.flows.parts import EVENTS, FINDINGS, LOGS, MOST_LINES, PLAN, STACKS
from aboard.lazy import dataclass
from aboard.record.look_words import MOST_RANKS, findings_of, look_of
from aboard.record.looks import MOST_LOOKS
from aboard.record.places import LOOK

# JSON can be twenty times as large in memory, as `[],[],[],…`: what counts is how many values there are.
MOST_DOCUMENT = 16 * MIB
MOST_VALUES = 1_500_000
MOST_LINE = 256 * KIB
MOST_EVENTS = 300_000
_MOST_VERDICTS = 2_000
_MOST_PIDS = 1_000
_TEXT = 20_000
# Up to the interpreter, behind which come the words of the script.
_MOST_WORDS = 5
# A rank's number has fewer digits than this, and int() of millions of them takes long.
_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line that a rank said."""

    at: float
    rank: int
    node: str
    stream: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A run's record; `findings` is what was said of it at its end, `looks` are in their order."""

    run: str
    plan: Plan | None
    events: tuple[Event, ...]
    looks: tuple[Look, ...]
    stacks: Mapping[int, str]
    findings: tuple[Finding, ...]
    lines: tuple[LogLine, ...]

    def tails(self) -> dict[int, tuple[str, ...]]:
        """The last words of each rank."""
        said: dict[int, bytearray] = {}
        for line in self.lines:
            if line.stream == "stderr":
                tail = said.setdefault(line.rank, bytearray())
                tail += f"{line.text}\n".encode("utf-8", "backslashreplace")
                del tail[:-TAIL_BYTES]
        return {rank: last_lines(tail) for rank, tail in said.items()}


def kept_of(run: str, parts: Mapping[str, bytes]) -> Kept:
    plan = _plan(_document(parts, PLAN), run)
    stacks = _document(parts, STACKS)
    names = sorted(name for name in parts if name.startswith(LOOK))[-MOST_LOOKS:]
    looks = [_with_starts(look, plan) for name in names if (look := look_of(_document(parts, name))) is not None]
    known = {start.child for each in (plan, *(look.plan for look in looks)) if each for _node, start in each.starts()}
    return Kept(
        run=run,
        plan=plan or (looks[-1].plan if looks else None),
        events=tuple(deque(_events(parts, {"", *known}), MOST_EVENTS)),
        looks=tuple(sorted(looks, key=lambda look: look.number)),
        stacks={
            int(rank): text
            for rank, text in (stacks.items() if isinstance(stacks, dict) else ())
            if rank.isdecimal() and len(rank) <= _DIGITS and isinstance(text, str)
        },
        findings=findings_of(_document(parts, FINDINGS)),
        lines=tuple(_lines(parts)),
    )


def _plan(given: Any, run: str) -> Plan | None:
    """Who had which ranks, what started them, and how their nodes are reached: what a verdict on an end needs."""
    nodes = _listed(given.get("nodes")) if isinstance(given, dict) else []
    if not nodes or sum(len(_listed(node.get("starts"))) for node in nodes) > MOST_RANKS:
        return None
    parts = tuple(
        NodePlan(
            node=_node(node),
            starts=tuple(
                Start(
                    child=_text(start.get("child")),
                    argv=_words(start.get("argv", node.get("argv"))),
                    rank=_count(start.get("rank")),
                )
                for start in _listed(node.get("starts"))
            ),
        )
        for node in nodes
    )
    program = Program(kind=Kind.SCRIPT, target="")
    return Plan(run=run, program=program, master=Master(node=parts[0].node.name, address=""), parts=parts)


def _node(given: Mapping[str, Any]) -> Node:
    """Whoever packed a bundle chose these words, and some go into commands: what is no host or user is left out."""
    name, address, user, port = (given.get(key) for key in ("name", "address", "user", "port"))
    other = isinstance(address, str) and address != name and host_trouble(address) is None
    return Node(
        name=_text(name),
        address=address if other else None,
        user=user if isinstance(user, str) and user_trouble(user) is None else None,
        port=port if isinstance(port, int) and 0 < port <= MAX_PORT else None,
        local=given.get("local") is True,
    )


def _with_starts(look: Look, plan: Plan | None) -> Look:
    """A look holds who was where; the plan, what was started there and how a node is reached."""
    known = {part.node.name: part for part in plan.parts} if plan is not None else {}
    parts = []
    for part in look.plan.parts:
        own = known.get(part.node.name)
        argv = {start.child: start.argv for start in own.starts} if own is not None else {}
        starts = tuple(replace(start, argv=argv.get(start.child, ())) for start in part.starts)
        reach = own.node if own is not None else part.node
        node = replace(part.node, user=reach.user, port=reach.port, local=reach.local)
        parts.append(NodePlan(node=node, starts=starts))
    return replace(look, plan=replace(look.plan, parts=tuple(parts)))


def _events(parts: Mapping[str, bytes], children: set[str]) -> Iterator[Event]:
    """Those of the run's own children: a stranger's file may tell of millions."""
    room = _MOST_VERDICTS
    for entry in _entries(parts, EVENTS):
        match entry:
            case {"kind": str(kind), "at": int() | float() as at}:
                child, rank, data = _text(entry.get("child")), entry.get("rank"), entry.get("data")
                room -= kind == "verdict"
                if child in children and room >= 0:
                    yield Event(
                        node=_text(entry.get("node")),
                        seq=0,
                        at=float(at),
                        kind=kind,
                        child=child,
                        rank=rank if isinstance(rank, int) else None,
                        data=_data(data) if isinstance(data, dict) else {},
                    )


def _data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, and of lists the processes that would not die and what was told."""
    data: dict[str, Any] = {name: value for name, value in given.items() if isinstance(value, str | int | float)}
    match given:
        case {"stubborn": list(pids)}:
            data["stubborn"] = [pid for pid in pids[:_MOST_PIDS] if isinstance(pid, int)]
        case {"findings": list(findings)}:
            data["findings"] = findings[:1]
    return data


def _lines(parts: Mapping[str, bytes]) -> Iterator[LogLine]:
    left = MOST_LINES
    for entry in _entries(parts, LOGS):
        match entry:
            case {"at": int() | float() as at, "rank": int(rank), "text": str(text)} if 0 <= rank < MOST_RANKS:
                stream = entry.get("stream")
                node = _text(entry.get("node"))
                yield LogLine(at=float(at), rank=rank, node=node, stream=str(stream), text=text[:_TEXT])
                left -= 1
        if not left:
            return


def _entries(parts: Mapping[str, bytes], name: str) -> Iterator[dict[str, Any]]:
    file = io.BytesIO(parts.get(name, b""))
    while line := file.readline(MOST_LINE):
        entry = _parsed(line)
        if isinstance(entry, dict):
            yield entry


def _document(parts: Mapping[str, bytes], name: str) -> Any:
    data = parts.get(name, b"")
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    return _parsed(data) if len(data) <= MOST_DOCUMENT and values <= MOST_VALUES else None


def _parsed(data: bytes) -> Any:
    """The value, or None for what is no JSON, or is nested deeper than any of ours."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _listed(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value[:_TEXT] if isinstance(value, str) else ""


def _words(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value[:_MOST_WORDS])) if isinstance(value, list) else ()


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < MOST_RANKS else 0
