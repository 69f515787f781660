"""What a record holds, as values. It may be a stranger's: it is read as data, part by part, each up to a limit."""

import io
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

from aboard.core.decoding import DecodeError, Limit, Via, Word, decode, try_decode
from aboard.core.event import Event
from aboard.core.evidence import TAIL_BYTES, last_lines
from aboard.core.look import Look
from aboard.core.node import Node
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.program import Kind, Program
from aboard.core.size import KIB, MIB
from aboard.core.words import MAX_PORT, host_trouble, user_trouble
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.flows.parts import EVENTS, FINDINGS, LOGS, MOST_LINES, PLAN
from aboard.lazy import dataclass
from aboard.record.documents import MOST_NODES, MOST_RANKS, decode_findings
from aboard.record.events import decode_event
from aboard.record.look_words import look_of
from aboard.record.looks import MOST_LOOKS
from aboard.record.places import LOOK

# JSON can be twenty times as large in memory, as `[],[],[],…`: what counts is how many values there are.
MOST_DOCUMENT = 16 * MIB
MOST_VALUES = 1_500_000
MOST_LINE = 256 * KIB
MOST_EVENTS = 300_000
_MOST_VERDICTS = 2_000
_Pids = Annotated[tuple[int, ...], Limit(1_000)]


def _decode_host(given: object) -> str:
    """Whoever packed a bundle chose these words, and some go into commands."""
    if isinstance(given, str) and host_trouble(given) is None:
        return given
    raise DecodeError("a host is wanted")


def _decode_user(given: object) -> str:
    if isinstance(given, str) and user_trouble(given) is None:
        return given
    raise DecodeError("a user is wanted")


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line that a rank said."""

    at: float
    rank: int
    node: str = ""
    stream: Word = ""
    text: Annotated[Untrusted, Limit(20_000)]


@dataclass(frozen=True, kw_only=True)
class _Start:
    child: str = ""
    # Up to the interpreter, behind which come the words of the script.
    argv: Annotated[tuple[str, ...], Limit(5)] | None = None
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class _Node:
    name: str = ""
    address: Annotated[str, Via(_decode_host)] | None = None
    user: Annotated[str, Via(_decode_user)] | None = None
    port: int | None = None
    local: bool = False
    argv: Annotated[tuple[str, ...], Limit(5)] = ()
    starts: Annotated[tuple[_Start, ...], Limit(MOST_RANKS)] = ()

    def plan(self) -> NodePlan:
        node = Node(
            name=self.name,
            address=self.address if self.address != self.name else None,
            user=self.user,
            port=self.port if self.port and self.port <= MAX_PORT else None,
            local=self.local,
        )
        starts = (
            Start(child=each.child, argv=self.argv if each.argv is None else each.argv, rank=each.rank)
            for each in self.starts
        )
        return NodePlan(node=node, starts=tuple(starts))


@dataclass(frozen=True, kw_only=True)
class _Plan:
    nodes: Annotated[tuple[_Node, ...], Limit(MOST_NODES)]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A run's record; `findings` is what was said of it at its end, `looks` are in their order.

    `own` is false for what somebody else packed, whose fixes are none.
    """

    run: str
    own: bool
    plan: Plan | None
    events: tuple[Event, ...]
    looks: tuple[Look, ...]
    findings: tuple[Finding, ...]
    lines: tuple[LogLine, ...]

    def tails(self) -> dict[int, tuple[Untrusted, ...]]:
        """The last words of each rank."""
        said: dict[int, bytearray] = {}
        for line in self.lines:
            if line.stream == "stderr":
                tail = said.setdefault(line.rank, bytearray())
                tail += f"{line.text.raw()}\n".encode("utf-8", "backslashreplace")
                del tail[:-TAIL_BYTES]
        return {rank: last_lines(tail) for rank, tail in said.items()}


def kept_of(run: str, parts: Mapping[str, bytes], *, own: bool = False) -> Kept:
    plan = _plan(_document(parts, PLAN), run)
    names = sorted(name for name in parts if name.startswith(LOOK))[-MOST_LOOKS:]
    looks = [
        _with_starts(look, plan) for name in names if (look := look_of(_document(parts, name), own=own)) is not None
    ]
    known = {start.child for each in (plan, *(look.plan for look in looks)) if each for _node, start in each.starts()}
    return Kept(
        run=run,
        own=own,
        plan=plan or (looks[-1].plan if looks else None),
        events=tuple(deque(_events(parts, {"", *known}), MOST_EVENTS)),
        looks=tuple(sorted(looks, key=lambda look: look.number)),
        findings=decode_findings(_document(parts, FINDINGS), own=own),
        lines=tuple(_lines(parts)),
    )


def _plan(given: object, run: str) -> Plan | None:
    """Who had which ranks, what started them, and how their nodes are reached: what a verdict on an end needs."""
    plan = try_decode(_Plan, given)
    if plan is None or not plan.nodes or sum(len(node.starts) for node in plan.nodes) > MOST_RANKS:
        return None
    parts = tuple(node.plan() for node in plan.nodes)
    program = Program(kind=Kind.SCRIPT, target="")
    return Plan(run=run, program=program, master=Master(node=parts[0].node.name, address=""), parts=parts)


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
    for event in filter(None, map(decode_event, _entries(parts, EVENTS))):
        room -= event.kind == "verdict"
        if event.child in children and room >= 0:
            yield replace(event, seq=0, data=_data(event.data))


def _data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, and of lists the processes that would not die and what was told."""
    data: dict[str, Any] = {name: each for name, each in given.items() if isinstance(each, Untrusted | int | float)}
    match given:
        case {"stubborn": list(pids)}:
            data["stubborn"] = decode(_Pids, pids)
        case {"findings": list(findings)}:
            data["findings"] = findings[:1]
    return data


def _lines(parts: Mapping[str, bytes]) -> Iterator[LogLine]:
    decoded = (try_decode(LogLine, entry) for entry in _entries(parts, LOGS))
    return islice((line for line in decoded if line is not None and line.rank < MOST_RANKS), MOST_LINES)


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
