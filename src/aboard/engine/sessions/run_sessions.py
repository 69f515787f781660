"""The sessions with the nodes of a run: starts the ranks of each generation, and ends them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from time import monotonic, time
from typing import Any

from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.run import event_kinds as kinds
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_ledger import VARIABLE, encode_earlier
from aboard.core.run.run_state import GENERATION, Run
from aboard.diagnoses import AgentRequestError, TransportError
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.sessions.node_messages import NodeMessages
from aboard.engine.sessions.silent_nodes import OldSupervisors, SilentNodes
from aboard.engine.sessions.standby_sessions import StandbySessions
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, SessionState

_LOG = logging.getLogger(__name__)

# After the grace period: for the supervisor's own cleanup, and for the last output to arrive.
SWEEP_SECONDS = 10.0
_CHANGES: Mapping[SessionState, type[kinds.NodeConnected | kinds.NodeDisconnected | kinds.NodeLost]] = {
    SessionState.CONNECTED: kinds.NodeConnected,
    SessionState.DISCONNECTED: kinds.NodeDisconnected,
    SessionState.LOST: kinds.NodeLost,
}


class RunSessions:
    """A session per node, with a supervisor of its own in each generation. Once `hurry` is set, no rank has a grace."""

    def __init__(
        self, run: Run, dialer: NodeDialer, lease: Lease, messages: NodeMessages, *, has_standbys: bool
    ) -> None:
        self.by_node: dict[str, NodeSession] = {}
        self.is_ending = False
        self.hurry = asyncio.Event()
        self.old_supervisors = OldSupervisors(self._note_old_end)
        self.silent_nodes = SilentNodes(dialer, self._take_lost)
        self._run = run
        self._dialer = dialer
        self._lease = lease
        self._messages = messages
        # How many supervisors a node has had.
        self._names: dict[str, int] = {}
        self._begun: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._standbys = StandbySessions(dialer, lease, self._note_standbys) if has_standbys else None

    async def take_standbys(self, plan: Plan) -> dict[str, NodeSession]:
        """The sessions whose supervisors have standbys on nodes of the plan."""
        return {} if self._standbys is None else await self._standbys.take([part.node.name for part in plan.parts])

    def prepare(self, plan: Plan, prepared: Mapping[str, NodeSession], number: int) -> None:
        """A session for each node of this generation: the one with standbys, or a new one, which is not open yet."""
        parts = {part.node.name: part for part in plan.parts}
        self.is_ending = False
        self._begun.clear()
        self._messages.note(kinds.AttemptStarted(number=number))
        self.by_node = {name: prepared.get(name) or self._build_session(part) for name, part in parts.items()}
        for name, session in prepared.items():
            session.set_callbacks(**self._build_callbacks(parts[name]))
            self._begun.add(name)
            self._take_state(name, session.state, "")

    async def start_ranks(self, plan: Plan, wanted_port: int, *, fixed: bool) -> int | None:
        """Starts all nodes in parallel, each its ranks once the port is known; returns that, or None without one."""
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def begin(node_plan: NodePlan) -> None:
            session = self.by_node[node_plan.node.name]
            try:
                await self._open(session, plan.code)
                if node_plan.node.name == plan.master.node:
                    port.set_result(await session.reserve(wanted_port, fixed=fixed))
                master_port = await asyncio.shield(port)
                env = self._build_generation_env(session, plan, master_port)
                starts = [replace(start, env={**start.env, **env}) for start in node_plan.starts]
                await asyncio.gather(*(session.start(start, await_port=master_port) for start in starts))
            except TransportError as error:
                if not port.done() and node_plan.node.name == plan.master.node:
                    port.cancel()
                self._report_start_failure(node_plan, error)
            except asyncio.CancelledError:
                if not port.cancelled():
                    raise

        await asyncio.gather(*(begin(part) for part in plan.parts))
        chosen = port.result() if port.done() and not port.cancelled() else None
        _LOG.info("ranks were sent to %d nodes; port of rank 0: %s", len(plan.parts), chosen)
        return chosen

    def release_ranks(self, port: int) -> None:
        """Lets all ranks connect to rank 0."""
        for session in self.by_node.values():
            task = asyncio.create_task(_release(session, port))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    def open_standbys(self, plan: Plan, spares: Sequence[NodePlan]) -> None:
        """After the first step of all ranks: until then they need the node for themselves."""
        now = self._run.generation
        if self._standbys is not None and not self.is_ending and now.phases[Phase.STEPS] == plan.world:
            parts = [*plan.parts, *spares]
            self._standbys.open(parts, plan.code, lambda node: self._name_supervisor(node, now.number + 1))

    async def end(self, grace: float) -> None:
        """Stops all ranks and receives their last output."""
        ends = [asyncio.create_task(self._end_session(session, grace)) for session in self.by_node.values()]
        if ends:
            await asyncio.wait(ends)

    async def close(self) -> None:
        if self._standbys is not None:
            await self._standbys.close()
        await self.silent_nodes.close()
        await self.old_supervisors.close()

    def _build_session(self, node_plan: NodePlan) -> NodeSession:
        name = self._name_supervisor(node_plan.node.name, self._run.generation.number)
        key = token_hex(16)
        callbacks = self._build_callbacks(node_plan)
        return NodeSession(node_plan.node, self._dialer, run=name, key=key, lease=self._lease, **callbacks)

    def _build_callbacks(self, node_plan: NodePlan) -> dict[str, Any]:
        node, number = node_plan.node.name, self._run.generation.number

        def while_current(take: Callable[..., None]) -> Callable[..., None]:
            """What an old supervisor reports after the next generation has begun is not about that one."""
            return lambda *given: take(*given) if self._run.generation.number == number else None

        return {
            "known_children": frozenset(start.child for start in node_plan.starts),
            "on_event": while_current(self._messages.take),
            "on_output": while_current(self._messages.take_piece),
            "on_state": while_current(lambda state, why: self._take_state(node, state, why)),
            "on_samples": while_current(self._messages.take_samples),
        }

    def _name_supervisor(self, node: str, number: int) -> str:
        """The name of the node's supervisor in this generation; a later number if one with standbys was lost."""
        number = self._names[node] = max(number, self._names.get(node, 0) + 1)
        return self._run.id if number == 1 else f"{self._run.id}.{number}"

    async def _open(self, session: NodeSession, code: bytes) -> None:
        """Starts the node's supervisor, unless that has standbys and runs."""
        if session.node.name not in self._begun:
            await session.begin()
            self._begun.add(session.node.name)
            if code:
                await session.send_code(code)

    def _build_generation_env(self, session: NodeSession, plan: Plan, port: int) -> dict[str, str]:
        """What the ranks of this generation get beyond the plan."""
        env = {"MASTER_PORT": str(port), GENERATION: str(self._run.generation.number)}
        if plan.code:
            env[VARIABLE] = encode_earlier(self._run.ledger, self._run.began + session.clock_offset)
        return env

    def _report_start_failure(self, node_plan: NodePlan, error: TransportError) -> None:
        """Marks the ranks as failed if the agent refused a request, else the node as lost."""
        node = node_plan.node.name
        if not isinstance(error, AgentRequestError):
            self._take_state(node, SessionState.LOST, error.seen)
            return
        failed = kinds.StartFailed(why=Untrusted(error.seen.removeprefix(f"{node}: ")))
        for start in node_plan.starts:
            self._messages.take(Event(node=node, at=time(), child=start.child, body=failed))

    async def _end_session(self, session: NodeSession, grace: float) -> None:
        """Stops a node's ranks, without grace once the user asks twice, and waits until its supervisor has exited."""
        is_lost = session.node.name in self._run.generation.lost
        try:
            async with asyncio.timeout(grace + SWEEP_SECONDS):
                if session.node.name not in self._begun or session.state is SessionState.LOST or is_lost:
                    return
                await session.end(0.0 if self.hurry.is_set() else grace)
                gone = asyncio.create_task(session.wait_gone())
                hurry = asyncio.create_task(self.hurry.wait())
                try:
                    await asyncio.wait([gone, hurry], return_when=asyncio.FIRST_COMPLETED)
                    if not gone.done():
                        await session.end(0.0)
                    await gone
                finally:
                    gone.cancel()
                    hurry.cancel()
        except (TimeoutError, TransportError):
            # Disconnected: its supervisor stops the ranks by itself when the lease expires.
            pass
        finally:
            if self._is_ended(session) or session.state is SessionState.LOST:
                # The bridge of a lost node may be alive, and stopped: it ends once its connection is closed.
                await session.leave(keep=True)
            else:
                self.old_supervisors.end(session)

    def _is_ended(self, session: NodeSession) -> bool:
        """Whether no rank of the node can be alive."""
        connection = self._run.generation.connections.get(session.node.name)
        has_ended = connection is not None and connection.ended
        return has_ended or bool(session.lost_agents) or session.node.name not in self._begun

    def _take_state(self, node: str, state: SessionState, why: str) -> None:
        session = self.by_node.get(node)
        is_lost = state is SessionState.LOST
        killed: Mapping[str, Any] = session.lost_agents if session is not None and is_lost else {}
        if is_lost and self.is_ending and not killed:
            return
        body = _CHANGES[state](why=Untrusted(why), **killed)
        self._messages.take(Event(node=node, at=time(), body=body))

    def _take_lost(self, session: NodeSession, why: str) -> None:
        """A silent node that others can't reach either is not waited for; ranks may still run there."""
        node = session.node.name
        if self.by_node.get(node) is session:
            self._messages.take(Event(node=node, at=time(), body=kinds.NodeLost(why=Untrusted(why))))

    def _note_standbys(self, nodes: Sequence[str]) -> None:
        self._messages.note(kinds.StandbysReady(nodes=tuple(nodes)))

    def _note_old_end(self, session: NodeSession) -> None:
        self._messages.note(kinds.OldSupervisorEnded(), session.node.name)
        if monotonic() - session.last_contact >= self._lease.seconds:
            self._take_lost(session, f"no contact for the full lease of {self._lease.seconds:g} s")


async def _release(session: NodeSession, port: int) -> None:
    # A node that is lost has its own event.
    with suppress(TransportError):
        await session.release(port)
