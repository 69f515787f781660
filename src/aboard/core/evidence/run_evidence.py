"""Evidence: everything known about a run when it is diagnosed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property

from aboard.core.cluster.head_machine import is_loopback
from aboard.core.evidence.flight_records import GroupProgress, list_group_progress
from aboard.core.evidence.node_snapshot import NodeSnapshot, ProcessGroupRecord, RankSnapshot, split_endpoint
from aboard.core.evidence.python_stacks import (
    StackFrame,
    classify_activity,
    find_user_frame,
    parse_main_thread,
    parse_traceback,
)
from aboard.core.plan.plan import Plan
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import RankProcess, Run
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

# The part of each rank's stderr that is kept for a verdict.
TAIL_BYTES = 4096
TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True)
class RankView:
    """One rank: what it reported, and what was observed."""

    rank: int
    node: str
    child: RankProcess | None
    seen: RankSnapshot | None

    @property
    def phase(self) -> Phase:
        return self.child.phase if self.child is not None else Phase.WAITING

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.state == "started"

    @property
    def finished(self) -> bool:
        return self.child is not None and self.child.state == "exited" and self.child.code == 0

    @cached_property
    def frames(self) -> tuple[StackFrame, ...]:
        """The main thread, innermost first; of a rank that is dead, where that was when it died."""
        if self.child is not None and self.child.dead:
            trace = self.child.raised.trace if self.child.raised is not None else NO_TEXT
            return parse_main_thread(self.child.stack) or parse_traceback(trace)
        return parse_main_thread(self.seen.stack) if self.seen is not None and self.seen.stack else ()

    @property
    def site(self) -> StackFrame | None:
        return find_user_frame(self.frames)

    @cached_property
    def at(self) -> str:
        """Its activity, as reported or from its stack."""
        if self.seen is not None and self.seen.doing:
            return self.seen.doing
        return classify_activity(self.frames)

    @property
    def states(self) -> str:
        process = self.seen.process if self.seen is not None else None
        return (process.states or process.state) if process is not None else ""

    @property
    def cpu(self) -> float:
        """CPU cores used by the rank and its descendants."""
        if self.seen is None or self.seen.process is None:
            return 0.0
        return self.seen.process.cpu + sum(worker.cpu for worker in self.seen.workers)

    @property
    def open_collective(self) -> bool:
        groups = self.seen.groups if self.seen is not None else None
        return any(not entry.over for group in groups or () for entry in group.entries)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known about a run: `tails` are the last stderr lines of each rank.

    `snapshots` are the nodes' replies, `unheard` why others sent none. `quiet` is the seconds without progress,
    `usual` the typical seconds of a step, `pace` the current ones; None where unknown. `last_lines` are the last lines
    of some ranks, of both streams.
    """

    plan: Plan
    run: Run
    tails: Mapping[int, tuple[Untrusted, ...]] = field(default_factory=dict)
    now: float = 0.0
    snapshots: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)
    quiet: float | None = None
    usual: float | None = None
    pace: float | None = None
    last_lines: Mapping[int, tuple[Untrusted, ...]] = field(default_factory=dict)

    @cached_property
    def views(self) -> tuple[RankView, ...]:
        """Every rank, in rank order."""
        return tuple(self._views())

    def view(self, rank: int) -> RankView:
        return self.views[rank]

    @cached_property
    def records(self) -> Mapping[int, tuple[ProcessGroupRecord, ...]]:
        """The flight records, by rank, of the ranks that have one."""
        snapshots = ((view.rank, view.seen) for view in self.views)
        return {
            rank: snapshot.groups
            for rank, snapshot in snapshots
            if snapshot is not None and snapshot.groups is not None
        }

    @cached_property
    def offsets(self) -> Mapping[int, float]:
        return {view.rank: self.snapshots[view.node].offset for view in self.views if view.node in self.snapshots}

    @cached_property
    def group_progress(self) -> tuple[GroupProgress, ...]:
        return tuple(list_group_progress(self.records, self.offsets))

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """The node of each address, without loopback, which every node has."""
        configured = ((part.node.name, (part.node.address, part.node.fabric_address)) for part in self.plan.parts)
        found = {address: name for name, addresses in configured for address in addresses if address}
        for name, node in self.snapshots.items():
            for _interface, address in node.addresses:
                if not is_loopback(address):
                    found[address] = name
        # A node may have lost an address that its ranks' connections still use.
        connected: dict[str, set[str]] = {}
        for view in self.views:
            for each in view.seen.sockets if view.seen is not None else ():
                if each.state == "ESTABLISHED":
                    connected.setdefault(split_endpoint(each.local)[0], set()).add(view.node)
        for address, nodes in connected.items():
            if len(nodes) == 1 and not is_loopback(address):
                found.setdefault(address, next(iter(nodes)))
        return found

    def _views(self) -> Iterator[RankView]:
        for rank, (node, start) in enumerate(self.plan.starts()):
            snapshot = self.snapshots[node].ranks.get(rank) if node in self.snapshots else None
            yield RankView(
                rank=rank, node=node, child=self.run.generation.children.get((node, start.child)), seen=snapshot
            )


def decode_tail(stderr: bytes | bytearray) -> tuple[Untrusted, ...]:
    """The last lines of a rank's stderr, decoded the same way live and from a record."""
    return Untrusted(bytes(stderr[-TAIL_BYTES:]).decode("utf-8", "replace")).lines()[-TAIL_LINES:]


def list_nodes(views: Iterable[RankView]) -> tuple[str, ...]:
    """The nodes of the ranks, each once, in order."""
    return tuple(dict.fromkeys(view.node for view in views))


def list_ranks(views: Iterable[RankView]) -> tuple[int, ...]:
    return tuple(view.rank for view in views)
