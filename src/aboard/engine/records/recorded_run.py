"""Parses a run's record into values. It may come from somebody else, so each part is untrusted and bounded."""

import io
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Literal

from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.decoding import HostName, MaxLength, UserName, Word, try_decode, try_parse_json
from aboard.core.evidence.run_evidence import TAIL_BYTES, decode_tail
from aboard.core.evidence.snapshot import Snapshot
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.event_kinds import Recovering, Settling, VerdictChanged
from aboard.core.run.events import Event
from aboard.core.text.byte_sizes import KIB, MIB
from aboard.core.text.input_text import MAX_PORT
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.records.record_parts import EVENTS, FINDINGS, LOGS, MOST_LINES, PLAN
from aboard.lazy_dataclass import dataclass
from aboard.record.event_log import decode_event
from aboard.record.json_documents import MOST_NODES, MOST_RANKS, decode_findings
from aboard.record.recent_snapshots import MOST_SNAPSHOTS
from aboard.record.run_directory import SNAPSHOT_PREFIX
from aboard.record.snapshot_document import decode_snapshot

# JSON such as `[],[],[],…` takes twenty times its size in memory, so the number of values is limited too.
MOST_DOCUMENT = 16 * MIB
MOST_VALUES = 1_500_000
MOST_LINE = 256 * KIB
MOST_EVENTS = 300_000
_MOST_VERDICTS = 2_000


@dataclass(frozen=True, kw_only=True)
class RecordedLogLine:
    """One line that a rank printed."""

    at: float
    rank: int
    node: str = ""
    stream: Word = ""
    text: Annotated[Untrusted, MaxLength(20_000)]


@dataclass(frozen=True, kw_only=True)
class _RecordedStart:
    child: str = ""
    # Up to the interpreter; the script's arguments follow it.
    argv: Annotated[tuple[str, ...], MaxLength(5)] | None = None
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class _RecordedContainer:
    runtime: Literal["apptainer", "singularity", "docker", "podman"]
    image: Annotated[str, MaxLength(4096)]


@dataclass(frozen=True, kw_only=True)
class _RecordedNode:
    name: str = ""
    # From whoever packed the bundle, and it may go into commands.
    address: HostName | None = None
    user: UserName | None = None
    port: int | None = None
    # Older records have `local` instead.
    transport: Word = ""
    local: bool = False
    container: _RecordedContainer | None = None
    argv: Annotated[tuple[str, ...], MaxLength(5)] = ()
    starts: Annotated[tuple[_RecordedStart, ...], MaxLength(MOST_RANKS)] = ()

    def plan(self) -> NodePlan:
        given = self.container
        container = Container(runtime=given.runtime, image=given.image) if given is not None else None
        node = Node(
            name=self.name,
            container=container,
            address=self.address if self.address != self.name else None,
            user=self.user,
            port=self.port if self.port and self.port <= MAX_PORT else None,
            transport=self._choose_transport(),
        )
        starts = (
            Start(
                child=each.child,
                argv=self.argv if each.argv is None else each.argv,
                rank=each.rank,
                container=container,
            )
            for each in self.starts
        )
        return NodePlan(node=node, starts=tuple(starts))

    def _choose_transport(self) -> TransportKind:
        known = {kind.value: kind for kind in TransportKind}
        return known.get(self.transport, TransportKind.LOCAL if self.local else TransportKind.SSH)


@dataclass(frozen=True, kw_only=True)
class _RecordedPlan:
    nodes: Annotated[tuple[_RecordedNode, ...], MaxLength(MOST_NODES)]


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run's record; `findings` are those reported at its end, `snapshots` are in order.

    `own` is false for a bundle of somebody else, whose fixes are not used.
    """

    run: str
    own: bool
    plan: Plan | None
    events: tuple[Event, ...]
    snapshots: tuple[Snapshot, ...]
    findings: tuple[Finding, ...]
    lines: tuple[RecordedLogLine, ...]

    def tails(self) -> dict[int, tuple[Untrusted, ...]]:
        """The last stderr lines of each rank."""
        output: dict[int, bytearray] = {}
        for line in self.lines:
            if line.stream == "stderr":
                tail = output.setdefault(line.rank, bytearray())
                tail += f"{line.text.raw()}\n".encode("utf-8", "backslashreplace")
                del tail[:-TAIL_BYTES]
        return {rank: decode_tail(tail) for rank, tail in output.items()}


def parse_recorded_run(run: str, parts: Mapping[str, bytes], *, own: bool = False) -> RecordedRun:
    plan = parse_recorded_plan(_parse_document(parts, PLAN), run)
    names = sorted(name for name in parts if name.startswith(SNAPSHOT_PREFIX))[-MOST_SNAPSHOTS:]
    snapshots = [
        _add_starts(snapshot, plan)
        for name in names
        if (snapshot := decode_snapshot(_parse_document(parts, name), own=own)) is not None
    ]
    children = {
        start.child
        for each in (plan, *(snapshot.plan for snapshot in snapshots))
        if each
        for _node, start in each.starts()
    }
    return RecordedRun(
        run=run,
        own=own,
        plan=plan or (snapshots[-1].plan if snapshots else None),
        events=tuple(deque(_parse_events(parts, {"", *children}, own=own), MOST_EVENTS)),
        snapshots=tuple(sorted(snapshots, key=lambda snapshot: snapshot.number)),
        findings=decode_findings(_parse_document(parts, FINDINGS), own=own),
        lines=tuple(_parse_log_lines(parts)),
    )


def parse_recorded_plan(document: object, run: str) -> Plan | None:
    """The nodes with their ranks, commands and connection settings: what a verdict on the end of a run needs."""
    plan = try_decode(_RecordedPlan, document)
    if plan is None or not plan.nodes or sum(len(node.starts) for node in plan.nodes) > MOST_RANKS:
        return None
    parts = tuple(node.plan() for node in plan.nodes)
    program = Program(kind=ProgramKind.SCRIPT, target="")
    return Plan(run=run, program=program, master=MasterAddress(node=parts[0].node.name, address=""), parts=parts)


def _add_starts(snapshot: Snapshot, plan: Plan | None) -> Snapshot:
    """Adds to a snapshot's placement of ranks the commands and connection settings, which only the plan has."""
    parts_by_node = {part.node.name: part for part in plan.parts} if plan is not None else {}
    parts = []
    for part in snapshot.plan.parts:
        own = parts_by_node.get(part.node.name)
        argv = {start.child: start.argv for start in own.starts} if own is not None else {}
        reach = own.node if own is not None else part.node
        starts = tuple(
            replace(start, argv=argv.get(start.child, ()), container=reach.container) for start in part.starts
        )
        node = replace(
            part.node, user=reach.user, port=reach.port, transport=reach.transport, container=reach.container
        )
        parts.append(NodePlan(node=node, starts=starts))
    return replace(snapshot, plan=replace(snapshot.plan, parts=tuple(parts)))


def _parse_events(parts: Mapping[str, bytes], children: set[str], *, own: bool) -> Iterator[Event]:
    """The events of the run's own children: somebody else's file may name millions."""
    room = _MOST_VERDICTS
    for entry in _parse_jsonl(parts, EVENTS):
        event = decode_event(entry, own=own)
        if event is not None and isinstance(body := event.body, VerdictChanged | Settling | Recovering):
            room -= 1
            event = replace(event, body=replace(body, findings=body.findings[:1]))
        if event is not None and event.child in children and room >= 0:
            yield replace(event, seq=0)


def _parse_log_lines(parts: Mapping[str, bytes]) -> Iterator[RecordedLogLine]:
    decoded = (try_decode(RecordedLogLine, entry) for entry in _parse_jsonl(parts, LOGS))
    return islice((line for line in decoded if line is not None and line.rank < MOST_RANKS), MOST_LINES)


def _parse_jsonl(parts: Mapping[str, bytes], name: str) -> Iterator[dict[str, Any]]:
    file = io.BytesIO(parts.get(name, b""))
    while line := file.readline(MOST_LINE):
        entry = try_parse_json(line)
        if isinstance(entry, dict):
            yield entry


def _parse_document(parts: Mapping[str, bytes], name: str) -> Any:
    data = parts.get(name, b"")
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    return try_parse_json(data) if len(data) <= MOST_DOCUMENT and values <= MOST_VALUES else None
