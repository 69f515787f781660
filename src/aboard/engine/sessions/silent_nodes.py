"""Nodes that the conductor can't reach: asks other nodes whether they can, and ends old ranks when one returns."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic
from typing import Annotated

from aboard.agent.network.tcp_probe import CONNECT_ONLY
from aboard.core.cluster.node import TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.decoding import DecodeError, IpAddress, MaxLength, PortNumber, decode, try_decode
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.lost_nodes import LOST_SECONDS, WITNESSES, is_lost, judge_attempts
from aboard.diagnoses import TransportError
from aboard.doctor.network.mesh_result import ConnectionAttempt
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, SessionState
from aboard.transport.slurm.slurm_commands import find_slurmd_port

_LOG = logging.getLogger(__name__)

# How long a connection may take, and how long the whole reply: a name server may be slow.
CONNECT_SECONDS = 3.0
REPLY_SECONDS = 5.0
# Other nodes are asked for the first time so early that a lost node is reported once it was silent for LOST_SECONDS.
ASK_AFTER_SECONDS = LOST_SECONDS - REPLY_SECONDS
# By then, they have replied.
SETTLED_SECONDS = LOST_SECONDS + REPLY_SECONDS
SSH_PORT = 22

ReportLost = Callable[[NodeSession, str], None]


@dataclass(frozen=True, kw_only=True)
class _ConnectReply:
    """The reply to `connect`."""

    results: Annotated[tuple[ConnectionAttempt, ...], MaxLength(16)] = ()


@dataclass(frozen=True, kw_only=True)
class _Server:
    """Where sshd accepted the head's connection, as the agent reports it."""

    address: IpAddress
    port: PortNumber


class SilentNodes:
    """Asks other nodes about each node that is silent; calls `report` once for each that is lost."""

    def __init__(self, dialer: NodeDialer, report: ReportLost) -> None:
        self._dialer = dialer
        self._report = report
        self._inquiries: dict[NodeSession, asyncio.Task[None]] = {}
        self._slurmd_port = 0

    def tick(self, sessions: Mapping[str, NodeSession]) -> None:
        """Called several times a second; never blocks."""
        for session in sessions.values():
            silent = monotonic() - session.last_contact
            known = self._inquiries.get(session)
            if _is_silent(session) and silent >= ASK_AFTER_SECONDS and (known is None or known.done()):
                others = [other for other in sessions.values() if other is not session]
                self._inquiries[session] = asyncio.create_task(self._inquire(session, others))

    async def close(self) -> None:
        for inquiry in self._inquiries.values():
            inquiry.cancel()
        if self._inquiries:
            await asyncio.wait(self._inquiries.values())

    async def _inquire(self, session: NodeSession, others: list[NodeSession]) -> None:
        """Asks until the node is back or lost, each time other nodes: one that is wrong doesn't decide."""
        reported = False
        while _is_silent(session) and not reported:
            began = monotonic()
            asked = [other for other in others if not _is_silent(other)][:WITNESSES]
            # Each is also asked to connect to the next one, which is well.
            answers = await asyncio.gather(
                *(self._ask(peer, session, well) for peer, well in zip(asked, [*asked[1:], *asked[:1]], strict=True))
            )
            _LOG.info(
                "%s is silent; can others connect to it? %s",
                session.node.name,
                dict(zip((other.node.name for other in asked), answers, strict=True)),
            )
            others = [*(other for other in others if other not in asked), *asked]
            await asyncio.sleep(session.last_contact + LOST_SECONDS - monotonic())
            silent = monotonic() - session.last_contact
            if _is_silent(session) and is_lost(silent, answers, len(others)):
                reported = True
                names = fold_names([other.node.name for other in asked])
                self._report(session, f"no contact for {silent:.0f} s, and no connection from {names} either")
            await asyncio.sleep(began + REPLY_SECONDS - monotonic())
        # Once it is back, it can be lost again.
        await session.wait_connected_or_lost()

    async def _ask(self, peer: NodeSession, session: NodeSession, well: NodeSession) -> bool | None:
        """Whether a peer can connect to a node; None if it doesn't respond, or can't reach a healthy one either."""
        targets = await self._list_targets(session)
        control = await self._list_targets(well) if well is not peer else []
        with suppress(TransportError, TimeoutError, DecodeError):
            async with asyncio.timeout(REPLY_SECONDS):
                dialled = await self._dialer.dial(peer.node) if peer.link is None else None
                link = peer.link if dialled is None else dialled.link
                if link is None:
                    return None
                try:
                    both = [*targets, *control]
                    reply = await link.ask(
                        "connect", REPLY_SECONDS, targets=both, seconds=CONNECT_SECONDS, timeout=REPLY_SECONDS
                    )
                finally:
                    if dialled is not None:
                        self._dialer.keep({peer.node.name: dialled})
                outcomes = [each.outcome for each in decode(_ConnectReply, reply).results]
                return judge_attempts(outcomes[: len(targets)], outcomes[len(targets) :])
        return None

    async def _list_targets(self, session: NodeSession) -> list[tuple[str, int, int]]:
        """The addresses of a node at which sshd, or slurmd, listens; with several networks, any of them will do."""
        node, server = session.node, try_decode(_Server, session.hello)
        addresses = [node.fabric_address, node.target]
        if node.transport is TransportKind.SLURM:
            port = self._slurmd_port = self._slurmd_port or await find_slurmd_port()
        else:
            port = (server.port if server is not None else 0) or node.port or SSH_PORT
            addresses.append(server.address if server is not None else None)
        return [(address, port, CONNECT_ONLY) for address in dict.fromkeys(addresses) if address]


class OldSupervisors:
    """Supervisors that were not seen to end: each is ended as soon as it can be reached, until its lease is over."""

    def __init__(self, on_end: Callable[[NodeSession], None]) -> None:
        self._on_end = on_end
        self._ending: dict[NodeSession, asyncio.Task[None]] = {}

    def end(self, session: NodeSession) -> None:
        """Begins to end one, in the background."""
        self._ending[session] = asyncio.create_task(self._end(session))

    @property
    def sessions(self) -> tuple[NodeSession, ...]:
        """Those whose ranks may still be alive."""
        return tuple(session for session, task in self._ending.items() if not task.done())

    def list_unsettled(self, lost: Collection[str]) -> list[str]:
        """Silent nodes about which other nodes are still to be asked; those that are known to be `lost` are settled."""
        now = monotonic()
        unsettled = [each for each in self.sessions if _is_silent(each) and now < each.last_contact + SETTLED_SECONDS]
        return [session.node.name for session in unsettled if session.node.name not in lost]

    def compute_lease_left(self, lease: Lease) -> float:
        """Seconds until none of them can hold anything any more."""
        contact = max((session.last_contact for session in self.sessions), default=float("-inf"))
        return max(0.0, contact + lease.seconds + lease.beat - monotonic())

    async def wait_ended(self, names: Collection[str], seconds: float) -> tuple[str, ...]:
        """Waits until no rank of an earlier generation is alive on these nodes; returns where some may still be."""
        tasks = [self._ending[session] for session in self.sessions if session.node.name in names]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return tuple(session.node.name for session in self.sessions if session.node.name in names)

    async def close(self) -> None:
        """Leaves the rest to their leases."""
        for task in self._ending.values():
            task.cancel()
        if self._ending:
            await asyncio.wait(self._ending.values())

    async def _end(self, session: NodeSession) -> None:
        try:
            # Both return when the lease is over, too.
            with suppress(TransportError):
                await session.end(0.0)
            await session.wait_gone()
            self._on_end(session)
        finally:
            await session.leave(keep=True)


def _is_silent(session: NodeSession) -> bool:
    return session.state is SessionState.DISCONNECTED
