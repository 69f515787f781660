"""Large files: the head sends each piece to one node, and the nodes pass the pieces on to each other.

It is only a faster way to partial files: whatever is missing after it comes from the head in the usual way.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from secrets import token_bytes
from time import monotonic

from aboard.commands.sync.file_packs import split_batches
from aboard.commands.sync.node_upload import ASK_AGAIN_SECONDS, BUSY_SECONDS, NodeUpload
from aboard.commands.sync.peers.peer_findings import PeerObservations, PeerReport, build_peer_report
from aboard.commands.sync.peers.piece_plan import PlanMember, choose_piece, find_group
from aboard.commands.sync.peers.piece_rounds import ROUND_BYTES, PieceRound, SharedFile, choose_shared_files, open_round
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.core.cluster.file_transfer_errors import build_busy_error
from aboard.diagnoses import AboardError, AgentRequestError
from aboard.doctor.network.mesh_probe import read_rendezvous_port, select_peers
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_sender import FileSender
from aboard.transport.files.peer_control import PeerControl, PeerEndpoint, PeerStatus

# Pieces sent at the same time: each arrives soon, so that its node can pass it on.
PIECES_AT_ONCE = 6
KEY_BYTES = 32
OPEN_SECONDS = 10.0
STATUS_SECONDS = 0.25
# Until the node is connected and has hashed what it has.
EARLY_STATUS_SECONDS = 0.05
TICK_SECONDS = 0.5
# When all others have everything, a node that lost its link has so long to come back; then the head serves it alone.
AWAY_SECONDS = 10.0


@dataclass(kw_only=True)
class _Member:
    """A node that takes part."""

    upload: NodeUpload
    peers: frozenset[int]
    plan: PlanMember = field(default_factory=PlanMember)
    endpoint: PeerEndpoint | None = None
    status: PeerStatus | None = None
    failed: bool = False
    away_since: float = 0.0
    unreached: frozenset[int] = frozenset()
    sent: int = 0
    # Bytes of earlier rounds; fetched before the link was lost; and fetched in all.
    finished: int = 0
    earlier: int = 0
    fetched: int = 0


async def distribute_large_files(uploads: Sequence[NodeUpload], directories: Sequence[SyncDirectory]) -> PeerReport:
    """Brings large files to the nodes that lack them, as complete partial files, and reports what went wrong."""
    shared = list(choose_shared_files(uploads, directories))
    numbers = sorted({number for each in shared for number in each.lacking | each.complete})
    if not shared:
        return PeerReport()
    return await _Distribution({number: uploads[number] for number in numbers}, shared).run()


class _Distribution:
    """One exchange, from the listeners to the last piece."""

    def __init__(self, uploads: dict[int, NodeUpload], shared: Sequence[SharedFile]) -> None:
        names = {upload.node.name: number for number, upload in uploads.items()}
        peers = select_peers(list(names))
        self._members = {
            number: _Member(
                upload=upload,
                peers=frozenset(names[peer] for peer in peers[upload.node.name] if peer != upload.node.name),
            )
            for number, upload in uploads.items()
        }
        self._shared = shared
        self._key = token_bytes(KEY_BYTES)
        self._rounds: list[PieceRound] = []
        self._turns = asyncio.Semaphore(PIECES_AT_ONCE)
        self._change = asyncio.Event()
        self._over = False
        self._source_error: AboardError | None = None
        self._seen = PeerObservations()
        self._groups: dict[int, dict[int, PlanMember]] = {}

    async def run(self) -> PeerReport:
        tasks = [asyncio.create_task(self._take_part(number)) for number in self._members]
        ticking = asyncio.create_task(self._tick())
        hashing: asyncio.Task[PieceRound] | None = None
        try:
            waiting = list(split_batches(self._shared, lambda each: each.file.bytes, most_bytes=ROUND_BYTES))
            hashing = asyncio.create_task(asyncio.to_thread(open_round, 0, waiting.pop(0)))
            while hashing is not None:
                now = await hashing
                hashing = None
                if waiting:
                    hashing = asyncio.create_task(asyncio.to_thread(open_round, now.first + now.count, waiting.pop(0)))
                with now.opened:
                    await self._run_round(now)
        finally:
            if hashing is not None:
                hashing.cancel()
            self._over = True
            for task in (ticking, *tasks):
                task.cancel()
            await asyncio.wait((ticking, *tasks))
        for task in tasks:
            if not task.cancelled() and (bug := task.exception()) is not None:
                raise bug
        names = {number: member.upload.node.name for number, member in self._members.items()}
        return build_peer_report(
            self._seen,
            names,
            fetched={number: member.fetched for number, member in self._members.items()},
            sent=sum(member.sent for member in self._members.values()),
            ports={number: member.endpoint.ports for number, member in self._members.items() if member.endpoint},
        )

    async def _run_round(self, piece_round: PieceRound) -> None:
        for number, member in self._members.items():
            if self._rounds:
                member.finished += self._rounds[-1].count_bytes(member.plan.has & member.plan.needs)
            member.plan.needs, member.plan.has = piece_round.list_needs(number), 0
            member.plan.ready, member.plan.since = False, monotonic()
        self._rounds.append(piece_round)
        self._wake()
        while any(member.plan.in_transit for member in self._members.values()) or not self._is_round_over():
            await self._change.wait()
            if self._source_error is not None:
                raise self._source_error
        for file in piece_round.files:
            for number in file.shared.lacking:
                if not self._members[number].plan.lacks:
                    self._members[number].upload.note_assembled(file.shared.place, file.shared.file)

    def _is_round_over(self) -> bool:
        """Whether all nodes have everything, except those that failed or do not come back."""
        lacking = [member for member in self._members.values() if member.plan.lacks and not member.failed]
        return all(member.away_since and monotonic() - member.away_since > AWAY_SECONDS for member in lacking)

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _tick(self) -> None:
        """For decisions that depend on time alone."""
        while not self._over:
            await asyncio.sleep(TICK_SECONDS)
            self._wake()

    def _find_group(self, number: int) -> dict[int, PlanMember]:
        """Found again when a connection comes or goes."""
        if not self._groups:
            plans = {each: member.plan for each, member in self._members.items()}
            for each in plans:
                if each not in self._groups:
                    group = {other: plans[other] for other in find_group(plans, each)}
                    self._groups.update((other, group) for other in group)
        return self._groups[number]

    def _set_links(self, number: int, links: frozenset[int]) -> None:
        plan = self._members[number].plan
        if plan.links != links:
            plan.links = links
            self._groups = {}
            self._wake()

    async def _take_part(self, number: int) -> None:
        member = self._members[number]
        try:
            await member.upload.run(partial(self._serve_link, number))
        except AboardError as error:
            # What it lacks comes from the head later, where the error is raised again if it persists.
            self._seen.absent[number] = error.seen
        finally:
            member.failed = not self._over
            self._set_links(number, frozenset())
            self._wake()

    async def _serve_link(self, number: int, sender: FileSender) -> None:
        """Runs again with a new link after a loss; the node finds by hash which pieces it still has."""
        member = self._members[number]
        member.plan.ready, member.plan.has, member.away_since = False, 0, 0.0
        member.earlier, member.status = member.fetched, None
        control = PeerControl(sender, self._shared[0].directory.to)
        try:
            await self._take_part_over_link(number, control, sender)
        finally:
            # No listener outlives the exchange: the link may be used for a launch.
            control.leave()
            member.away_since = monotonic()
            self._set_links(number, frozenset())

    async def _take_part_over_link(self, number: int, control: PeerControl, sender: FileSender) -> None:
        member = self._members[number]
        node = member.upload.node
        address = node.fabric_address or str(sender.link.hello.get("address") or "") or node.target
        # Both kinds of ports that `aboard check` tests; 0 is any free one.
        ports = (read_rendezvous_port(node.env), 0)
        member.endpoint = await control.open(me=number, key=self._key, address=address, ports=ports)
        self._wake()
        await self._wait_for_endpoints()
        known = [(peer, at) for peer in sorted(member.peers) if (at := self._members[peer].endpoint) is not None]
        member.plan.expected = frozenset(peer for peer, _at in known)
        member.plan.since = monotonic()
        await control.dial(known)
        sending = asyncio.create_task(self._send_pieces(number, control))
        try:
            await self._exchange_files(number, control, sending)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            member.plan.in_transit.clear()

    async def _wait_for_endpoints(self) -> None:
        """A node that takes longer dials the others itself."""
        deadline = monotonic() + OPEN_SECONDS
        while monotonic() < deadline and any(
            member.endpoint is None and not member.failed for member in self._members.values()
        ):
            change = self._change
            await asyncio.wait([asyncio.ensure_future(change.wait())], timeout=deadline - monotonic())

    async def _exchange_files(self, number: int, control: PeerControl, sending: "asyncio.Task[None]") -> None:
        """Adds files and takes in the node's reports until everybody has everything."""
        added = 0
        while not self._over:
            while added < len(self._rounds):
                await self._add_files(number, control, self._rounds[added])
                added += 1
            if not self._rounds:
                await self._change.wait()
                continue
            now = self._rounds[-1]
            plan = self._members[number].plan
            waits = plan.ready and plan.expected <= plan.links
            status = await control.status(now.first, now.count, STATUS_SECONDS if waits else EARLY_STATUS_SECONDS)
            if sending.done():
                sending.result()
            if added == len(self._rounds):
                self._note_status(number, now, status)

    async def _add_files(self, number: int, control: PeerControl, each: PieceRound) -> None:
        for file in each.files:
            complete = number in file.shared.complete
            if complete or number in file.shared.lacking:
                deadline = monotonic() + BUSY_SECONDS
                while not await control.add(file.table, complete=complete):
                    if monotonic() > deadline:
                        raise build_busy_error(
                            self._members[number].upload.node.name, file.table.folder, file.table.name
                        )
                    await asyncio.sleep(ASK_AGAIN_SECONDS)

    def _note_status(self, number: int, piece_round: PieceRound, status: PeerStatus) -> None:
        member, plan = self._members[number], self._members[number].plan
        if member.status is None or status.received > member.status.received:
            plan.received_at = monotonic()
        grown = status.have & ~plan.has
        if status.ready and not plan.ready:
            self._wake()
        member.status, member.unreached = status, status.unreached
        plan.ready, plan.has = status.ready, plan.has | status.have
        self._set_links(number, status.links & self._members.keys())
        # Not waited for: peers that are gone or given up, and those that neither end can reach.
        plan.expected = frozenset(
            peer
            for peer in plan.expected - status.wrong - status.silent
            if not (
                self._members[peer].failed or (peer in status.unreached and number in self._members[peer].unreached)
            )
        )
        member.fetched = member.earlier + status.fetched
        self._seen.note(number, member.peers, status)
        if grown:
            member.upload.report_pieces(member.finished + piece_round.count_bytes(plan.has & plan.needs))
            if not plan.lacks:
                self._wake()

    async def _send_pieces(self, number: int, control: PeerControl) -> None:
        """Sends pieces to this node, as long as it is the one that should get them."""
        plan = self._members[number].plan
        while not self._over:
            change = self._change
            async with self._turns:
                piece = choose_piece(plan, self._find_group(number), monotonic()) if self._rounds else None
                if piece is not None:
                    plan.in_transit.add(piece)
                    try:
                        await self._send_piece(number, control, self._rounds[-1], piece)
                        plan.has |= 1 << piece
                        plan.sent_at = monotonic()
                    finally:
                        plan.in_transit.discard(piece)
                        if not plan.lacks:
                            self._wake()
            if piece is None:
                await change.wait()

    async def _send_piece(self, number: int, control: PeerControl, piece_round: PieceRound, piece: int) -> None:
        member = self._members[number]
        file, at, length = piece_round.locate(piece)
        data = await asyncio.to_thread(file.source.read, at, length)

        def count(taken: int) -> None:
            member.sent += taken
            member.upload.count_piece_bytes(taken)

        try:
            await control.send(piece_round.first + piece, memoryview(data), count)
        except AgentRequestError:
            # The node refuses a piece whose hash is wrong: then the file changed here.
            try:
                await asyncio.to_thread(file.source.judge)
            except AboardError as error:
                self._source_error = error
                self._wake()
            raise
