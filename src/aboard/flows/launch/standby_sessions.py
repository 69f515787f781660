"""Opens the supervisors of the next generation early: on each node one process per slot does a rank's imports.

They belong to the next supervisor because the present one ends all that carries its run id. A node whose supervisor or
processes are lost meanwhile starts its ranks as usual.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from secrets import token_hex

from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.plan.rank_variables import STANDBY, list_torchrun_variables
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.diagnoses import TransportError
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, SessionState

END_SECONDS = 10.0


class StandbySessions:
    """Sessions with supervisors that have standbys, by node; `on_ready` is called once all of them wait."""

    def __init__(self, dialer: NodeDialer, lease: Lease, on_ready: Callable[[], None]) -> None:
        self._dialer = dialer
        self._lease = lease
        self._on_ready = on_ready
        self._sessions: dict[str, NodeSession] = {}
        self._opening: asyncio.Future[list[None]] | None = None
        self._ends: set[asyncio.Task[None]] = set()
        self._starting = 0

    @property
    def are_open(self) -> bool:
        """Whether `open` was called since the last `take`."""
        return self._opening is not None

    def open(self, plan: Plan, name: Callable[[str], str]) -> None:
        """Starts a standby for each rank of the plan, in the background; `name` names a node's supervisor.

        Containers are fixed when a process starts, so they have no standbys.
        """
        parts = [part for part in plan.parts if part.node.name not in self._sessions]
        parts = [part for part in parts if all(start.container is None for start in part.starts)]
        self._starting = sum(len(part.starts) for part in parts)
        self._opening = asyncio.gather(*(self._open(part, plan.code, name(part.node.name)) for part in parts))

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
            await session.bring(code)
            for start in part.starts:
                waiting = replace(start, env={**start.env, STANDBY: "1"})
                await session.start_standby(waiting, handed=list_torchrun_variables())
            self._sessions[part.node.name] = session
        except TransportError:
            self._count_down(len(part.starts))
        finally:
            if self._sessions.get(part.node.name) is not session:
                self._end_later(session)

    async def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
            self._opening = None

    def _take(self, event: Event) -> None:
        if event.kind == "standby":
            self._count_down(1)

    def _count_down(self, count: int) -> None:
        self._starting -= count
        if self._starting == 0:
            self._on_ready()

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
