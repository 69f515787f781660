"""Opens the supervisors of the next generation early: on each node one process per slot does a rank's imports.

Spares have them as well. They belong to the next supervisor because the present one ends all that carries its run id. A
node whose supervisor or processes are lost meanwhile starts its ranks as usual.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from secrets import token_hex

from aboard.core.plan.plan import NodePlan
from aboard.core.plan.rank_variables import STANDBY, list_torchrun_variables
from aboard.core.run.event_kinds import StandbyReady
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.diagnoses import TransportError
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, SessionState

END_SECONDS = 10.0


class StandbySessions:
    """Sessions with supervisors that have standbys, by node; `on_ready` gets their nodes once all wait."""

    def __init__(self, dialer: NodeDialer, lease: Lease, on_ready: Callable[[Sequence[str]], None]) -> None:
        self._dialer = dialer
        self._lease = lease
        self._on_ready = on_ready
        self._sessions: dict[str, NodeSession] = {}
        # By node, since the last `take`; with how many processes that are not ready.
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._starting: dict[str, int] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def open(self, parts: Iterable[NodePlan], code: bytes, name: Callable[[str], str]) -> None:
        """Starts a standby for each rank in the background, once on each node; `name` names a node's supervisor.

        Containers are fixed when a process starts, so they have no standbys.
        """
        for part in parts:
            node = part.node.name
            is_known = node in self._opening or node in self._sessions
            if not is_known and all(start.container is None for start in part.starts):
                self._starting[node] = len(part.starts)
                self._opening[node] = asyncio.create_task(self._open(part, code, name(node)))

    async def take(self, nodes: Sequence[str]) -> dict[str, NodeSession]:
        """The open sessions with these nodes, which are the caller's from here on."""
        await self._stop_opening()
        found = {name: self._sessions.pop(name) for name in nodes if name in self._sessions}
        taken = {name: session for name, session in found.items() if session.state is SessionState.CONNECTED}
        for name in found.keys() - taken.keys():
            self._end_later(found[name])
        return taken

    async def close(self) -> None:
        """Ends all standbys; where a node can't be reached, the lease of their supervisor does."""
        await self._stop_opening()
        for session in self._sessions.values():
            self._end_later(session)
        if self._ends:
            await asyncio.wait(self._ends)

    async def _open(self, part: NodePlan, code: bytes, run: str) -> None:
        session = NodeSession(
            part.node, self._dialer, run=run, key=token_hex(16), lease=self._lease, on_event=self._take
        )
        try:
            await session.begin()
            await session.send_code(code)
            for start in part.starts:
                waiting = replace(start, env={**start.env, STANDBY: "1"})
                await session.start_standby(waiting, handed=list_torchrun_variables())
            self._sessions[part.node.name] = session
        except TransportError:
            self._count_down(part.node.name, len(part.starts))
        finally:
            if self._sessions.get(part.node.name) is not session:
                self._end_later(session)

    async def _stop_opening(self) -> None:
        opening, self._opening = self._opening, {}
        self._starting.clear()
        for task in opening.values():
            task.cancel()
        if opening:
            await asyncio.wait(opening.values())

    def _take(self, event: Event) -> None:
        if isinstance(event.body, StandbyReady):
            self._count_down(event.node, 1)

    def _count_down(self, node: str, count: int) -> None:
        if node in self._starting:
            self._starting[node] = max(0, self._starting[node] - count)
            if not any(self._starting.values()):
                self._starting.clear()
                self._on_ready(list(self._sessions))

    def _end_later(self, session: NodeSession) -> None:
        task = asyncio.create_task(_end_session(session))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)


async def _end_session(session: NodeSession) -> None:
    try:
        async with asyncio.timeout(END_SECONDS):
            await session.end(0.0)
            await session.wait_gone()
    except (TimeoutError, TransportError):
        # Its supervisor ends them when the lease expires.
        pass
    finally:
        await session.leave()
