"""The conductor: opens a session to every node, starts the ranks, folds their events, and stops all if one fails."""

import asyncio
import time as time_functions
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from time import monotonic, time
from typing import Any, Protocol

from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import TAIL_BYTES, Evidence, decode_tail
from aboard.core.evidence.snapshot import build_snapshot
from aboard.core.evidence.verdict import Judgement
from aboard.core.exit_codes import choose_run_exit_code
from aboard.core.plan.plan import NodePlan, Plan, add_rank_env
from aboard.core.run.end_decision import STOPPED_SECONDS, EndDecision, decide
from aboard.core.run.events import Event, Measurement
from aboard.core.run.failure_classes import FailureClass, classify_failure
from aboard.core.run.lease import Lease
from aboard.core.run.lost_nodes import LOST_SECONDS
from aboard.core.run.rank_phases import Phase
from aboard.core.run.recovery_policy import Action, Recovery, StallAction
from aboard.core.run.run_ledger import VARIABLE, encode_earlier
from aboard.core.run.run_state import GENERATION, Run
from aboard.diagnoses import AgentRequestError, Finding, TransportError
from aboard.diagnoses.trainer import checkpoint
from aboard.diagnoses.untrusted import Untrusted
from aboard.flows.launch.checkpoint_copies import CheckpointCopies, CopySettings
from aboard.flows.launch.collect_evidence import (
    CollectedEvidence,
    collect_death_evidence,
    collect_evidence,
    collect_follow_up,
)
from aboard.flows.launch.recover_run import RecoveryFailed, RunRecovery
from aboard.flows.launch.silent_nodes import OldSupervisors, SilentNodes
from aboard.flows.launch.stall_monitor import RESTART_SECONDS, STAYS_SECONDS, StallMonitor
from aboard.flows.launch.standby_sessions import StandbySessions
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import build_findings_document
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NO_STACKS, NodeSession, SessionState
from aboard.transport.supervisor_messages import OutputChunk
from aboard.verdicts.death.classify_end import classify_end
from aboard.verdicts.death.first_death import find_first_death
from aboard.verdicts.death.rules import conclude_run
from aboard.verdicts.judge_evidence import judge_live_run
from aboard.verdicts.live.nonfinite_loss import is_suspicious_output
from aboard.verdicts.live.undetermined import report_internal_error

STACKS_BYTES = 32 * 1024 * 1024
# Wait for further deaths before stopping the other ranks: one of them may have happened earlier.
LATE_DEATH_SECONDS = 0.3
TICK_SECONDS = 0.25
# A conductor that did not run for this share of its lease is worth a note.
PAUSED_SHARE = 0.5
# The share of the conductor's time that the observer may use.
OBSERVER_SHARE = 0.1
# After the grace period: for the supervisor's own cleanup, and for the last output to arrive.
SWEEP_SECONDS = 10.0
# The last output of these first ranks is searched for a non-finite loss: usually rank 0 prints it.
LOSS_SCAN_RANKS = 8


class RunObserver(Protocol):
    """Receives a run's events, for display; must neither block nor raise."""

    def began(self, conductor: "Conductor") -> None: ...

    def event(self, event: Event) -> None: ...

    def tick(self, now: float) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended: the findings, verdict first, and the exit code of the rank that the verdict names."""

    why: str
    findings: tuple[Finding, ...]
    code: int


class Conductor:
    """Conducts one run. With port 0 in `plan`, the supervisor of rank 0's node picks a free port before the start.

    `earlier` generations of the run were conducted by another process.
    """

    def __init__(
        self,
        plan: Plan,
        dialer: NodeDialer,
        *,
        lease: Lease,
        record: Record,
        run_observer: RunObserver,
        fixed_port: bool = False,
        on_stall: StallAction = StallAction.REPORT,
        recovery: RunRecovery | None = None,
        earlier: int = 0,
        copies: CopySettings | None = None,
    ) -> None:
        self.plan = plan
        self.run = Run(id=plan.run)
        # Called with the plan of a further generation.
        self.on_plan: Callable[[Plan], None] = lambda _plan: None
        # The verdict on the last generation that failed.
        self.verdict: tuple[Finding, ...] = ()
        self.stacks: dict[int, str] = {}
        self._stacks_room = STACKS_BYTES
        self._tails: dict[int, bytearray] = {}
        self._dialer = dialer
        self._lease = lease
        self._record = record
        self._run_observer = run_observer
        self._fixed_port = fixed_port
        self._recovery = recovery
        self._on_stall = on_stall
        self._earlier = earlier
        if recovery is not None:
            recovery.spares.on_change = lambda node, why: self._note("spare", node=node, why=why)
        self._copy_settings = copies
        self._copies: CheckpointCopies | None = None
        self._stop_asked = asyncio.Event()
        self._wanted_port = plan.master.port
        self._sessions: dict[str, NodeSession] = {}
        # How many supervisors a node has had.
        self._names: dict[str, int] = {}
        self._standbys: StandbySessions | None = None
        if recovery is not None and recovery.settings.has_standbys and plan.code:
            self._standbys = StandbySessions(dialer, lease, lambda: self._note("standbys"))
        self._begun: set[str] = set()
        self._ranks = {start.child: rank for rank, (_, start) in enumerate(plan.starts())}
        self._end: asyncio.Future[EndDecision] | None = None
        self._ending = False
        self._stops = 0
        self._grace_limit: float | None = None
        self._expects_stop = False
        self._hurry = asyncio.Event()
        self._releasing: set[asyncio.Task[None]] = set()
        self._stopped_since: dict[tuple[str, str], float] = {}
        self._collected = CollectedEvidence()
        self._snapshot_count = 0
        self._standing_verdict: Finding | None = None
        self._silent_nodes = SilentNodes(dialer, self._take_lost)
        self._old_supervisors = OldSupervisors(self._note_old_end)
        self._watch = self._build_monitor()

    # -- public interface --------------------------------------------------------------------------------

    def stop(self, why: str, *, within: float | None = None) -> None:
        """The first call stops the run with a grace period, so that scripts can save; the second, immediately.

        `within` limits the grace period to this many seconds.
        """
        self._stops += 1
        self._grace_limit = within
        self._note("stopping", why=why)
        self._stop_asked.set()
        if self._stops > 1:
            self._hurry.set()
        self._request_end(EndDecision(why=why, asked=True))

    def expect_stop(self) -> None:
        """Blames no rank for its death until `stop` is called: Slurm is ending the job, and is being asked why."""
        self._expects_stop = True

    def tail(self, rank: int) -> tuple[Untrusted, ...]:
        """The last lines that a rank printed."""
        return self._record.tail(rank)

    def evidence(self) -> Evidence:
        now = time()
        first = self.run.generation.first_death
        dead_rank = {self._ranks[first.name]} if first is not None else set()
        return Evidence(
            plan=self.plan,
            run=self.run,
            tails={rank: self._last_lines(rank) for rank in self._tails},
            now=now,
            snapshots=self._collected.snapshots,
            unheard=self._collected.unheard,
            quiet=self._watch.rhythm.quiet(now),
            usual=self._watch.rhythm.usual,
            pace=self._watch.rhythm.pace,
            last_lines={rank: self.tail(rank) for rank in {*range(min(LOSS_SCAN_RANKS, self.plan.world)), *dead_rank}},
        )

    async def ask_why(self) -> Judgement:
        """Queries every node for a snapshot and judges why the run makes no progress."""
        began = monotonic()
        try:
            collected = self._collected = await collect_evidence(self.plan, self.run, self._sessions)
            self._collected = await collect_follow_up(collected, self.evidence(), self._sessions)
            evidence = self.evidence()
            why = judge_live_run(evidence)
            if not why.findings and self.run.generation.first_death is not None:
                # A rank has died, and the others are being stopped: report that death.
                end = conclude_run(evidence, self._standing_verdict, unhurt=False)
                why = replace(why, findings=end.findings, ruled_out=(*why.ruled_out, *end.ruled_out))
            self._record_snapshot(evidence, why.findings)
        except Exception as error:  # noqa: BLE001 - a bug in Aboard must not leave a stuck run without a verdict
            why = Judgement(findings=(report_internal_error(error, run=self.plan.run),))
        return replace(why, seconds=monotonic() - began)

    @property
    def stall(self) -> Finding | None:
        """The verdict on a run that makes no progress; None while it progresses."""
        why = self._watch.why
        return why.findings[0] if why is not None and why.findings else None

    @property
    def stall_ends(self) -> tuple[StallAction, float] | None:
        """What is done about it, and when, unless the run progresses before; a bug of the program is not restarted."""
        at, stall = self._watch.acts_at, self.stall
        if at is None or stall is None:
            return None
        is_bug = classify_failure(stall.code, stall.fix.variant) is FailureClass.PROGRAM
        return StallAction.STOP if is_bug else self._on_stall, at

    async def conduct(self) -> RunOutcome:
        """Runs generations until one ends without a restart, and always leaves the nodes clean."""
        ticking = asyncio.create_task(self._tick())
        self._run_observer.began(self)
        try:
            number = self._earlier
            while True:
                number += 1
                end = await self._generation(number)
                if end.again and not self._stops and not self._old_supervisors.sessions:
                    # Another process may use the port for long: let the supervisor pick any free one.
                    self._wanted_port = 0
                    self._note("restarting", why=end.why)
                    await self._reset_generation()
                    continue
                outcome = self._conclude(end)
                gives_up = end.stuck and self._on_stall is StallAction.STOP
                if outcome.code == 0 or self._stops or gives_up or self._recovery is None:
                    break
                plan, why = await self._recover(self._recovery, outcome)
                if plan is None:
                    outcome = replace(outcome, why=f"{outcome.why}; not restarted: {why}")
                    break
                self.plan = plan
                self.on_plan(plan)
                self._ranks = {start.child: rank for rank, (_, start) in enumerate(plan.starts())}
                await self._reset_generation()
            self._note("finished", why=outcome.why, code=outcome.code, **self._describe_steps())
            return outcome
        finally:
            if self._recovery is not None:
                await self._recovery.spares.stop()
            ticking.cancel()
            await asyncio.wait([ticking])
            await self._watch.close()
            if self._standbys is not None:
                await self._standbys.close()
            await self._silent_nodes.close()
            await self._old_supervisors.close()

    # -- between generations -----------------------------------------------------------------------------

    async def _recover(self, recovery: RunRecovery, outcome: RunOutcome) -> tuple[Plan | None, str]:
        """The plan of the next generation, or None and why there is none. The verdict is recorded before any wait."""
        active = [part.node.name for part in self.plan.parts]
        self.verdict = outcome.findings
        failure = classify_end(self.evidence(), outcome.findings)
        if recovery.settings.restarts and failure.kind is not FailureClass.PROGRAM:
            await self._await_settled()
        own_lease = (
            self._old_supervisors.compute_lease_left(self._lease)
            if failure.code == checkpoint.FOLDER_BUSY.code
            else 0.0
        )
        failure = replace(failure, lost=tuple(self.run.generation.lost), own_lease=own_lease)
        decision = recovery.decide(failure, active)

        def note(decision: Recovery, *, again: bool = True) -> None:
            self._note(
                "recovering",
                code=failure.code,
                nodes=list(failure.nodes),
                seen=outcome.findings[0].seen if outcome.findings else outcome.why,
                failure=failure.kind.value,
                action=decision.action.value,
                why=decision.why,
                doing=decision.doing,
                most=recovery.attempts,
                again=again,
                **self._describe_steps(),
                findings=build_findings_document(list(outcome.findings)),
            )

        note(decision, again=False)
        if decision.action is Action.STOP:
            return None, decision.why
        preparing = asyncio.create_task(self._prepare(recovery, decision, active, note))
        stopped = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait([preparing, stopped], return_when=asyncio.FIRST_COMPLETED)
            return (preparing.result(), "") if preparing.done() else (None, "it was stopped meanwhile")
        except RecoveryFailed as error:
            return None, str(error)
        finally:
            preparing.cancel()
            stopped.cancel()
            await asyncio.wait([preparing, stopped])

    async def _prepare(
        self,
        recovery: RunRecovery,
        decision: Recovery,
        active: Sequence[str],
        on_change: Callable[[Recovery], None],
    ) -> Plan:
        """The next plan, once no rank of an earlier generation is alive on its nodes."""
        longest = self._lease.seconds + self._lease.beat + SWEEP_SECONDS
        if decision.lease:
            await self._old_supervisors.wait_ended([each.node.name for each in self._old_supervisors.sessions], longest)
        resume = "saved" in self.run.metrics
        plan = await recovery.prepare(decision, active, resume=resume, on_change=on_change)
        if alive := await self._old_supervisors.wait_ended([part.node.name for part in plan.parts], longest):
            raise RecoveryFailed(f"the ranks of the last attempt on {fold_names(alive)} don't end")
        count, budget = str(recovery.restarts), str(recovery.settings.restarts)
        return add_rank_env(plan, {"TORCHELASTIC_RESTART_COUNT": count, "TORCHELASTIC_MAX_RESTARTS": budget})

    async def _await_settled(self) -> None:
        """Waits until nodes that are silent are back, are lost, or can be reached by others."""
        lost = self.run.generation.lost
        if silent := self._old_supervisors.list_unsettled(lost):
            why = f"waiting until {fold_names(silent)} is back or lost"
            self._note("settling", nodes=silent, why=why, findings=build_findings_document(list(self.verdict)))
        while self._old_supervisors.list_unsettled(lost) and not self._stops:  # noqa: ASYNC110 - time passes, too
            await asyncio.sleep(TICK_SECONDS)

    def _is_ended(self, session: NodeSession) -> bool:
        """Whether no rank of the node can be alive."""
        connection = self.run.generation.connections.get(session.node.name)
        has_ended = connection is not None and connection.ended
        return has_ended or bool(session.lost_agents) or session.node.name not in self._begun

    async def _reset_generation(self) -> None:
        """Forgets what the last generation was judged by, so that the next one is judged by its own evidence."""
        await self._watch.close()
        self._watch = self._build_monitor()
        self._collected = CollectedEvidence()
        self._standing_verdict = None
        self._tails.clear()
        self._record.clear_tails()
        self._stopped_since.clear()
        self.stacks.clear()
        self._stacks_room = STACKS_BYTES

    def _build_monitor(self) -> StallMonitor:
        act = None if self._on_stall is StallAction.REPORT else self._end_stuck_run
        stays = STAYS_SECONDS if self._on_stall is StallAction.STOP else RESTART_SECONDS
        return StallMonitor(self.ask_why, self._take_verdict, act, stays=stays)

    # -- one generation ----------------------------------------------------------------------------------

    async def _generation(self, number: int) -> EndDecision:
        parts = {part.node.name: part for part in self.plan.parts}
        prepared = {} if self._standbys is None else await self._standbys.take(list(parts))
        self._ending = False
        self._begun.clear()
        self._copies = None
        self._end = asyncio.get_running_loop().create_future()
        self._note("generation", number=number)
        self._sessions = {name: prepared.get(name) or self._build_session(part) for name, part in parts.items()}
        for name, session in prepared.items():
            session.follow(**self._build_callbacks(parts[name]))
            self._begun.add(name)
            self._take_state(name, session.state, "")
        beginning = asyncio.create_task(self._begin())
        try:
            both: list[asyncio.Future[Any]] = [beginning, self._end]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if beginning.done() and beginning.exception() is not None:
                # Node failures are handled in _begin; anything else is raised here.
                await beginning
            end = await self._end
            if end.stacks:
                await asyncio.sleep(LATE_DEATH_SECONDS)
        finally:
            beginning.cancel()
            await asyncio.wait([beginning])
            end = self._end.result() if self._end.done() and not self._end.cancelled() else EndDecision(why="given up")
            await self._wind_down(end)
        return end

    def _build_session(self, node_plan: NodePlan) -> NodeSession:
        name = self._name_supervisor(node_plan.node.name, self.run.generation.number)
        key = token_hex(16)
        callbacks = self._build_callbacks(node_plan)
        return NodeSession(node_plan.node, self._dialer, run=name, key=key, lease=self._lease, **callbacks)

    def _build_callbacks(self, node_plan: NodePlan) -> dict[str, Any]:
        node, number = node_plan.node.name, self.run.generation.number

        def while_current(take: Callable[..., None]) -> Callable[..., None]:
            """What an old supervisor reports after the next generation has begun is not about that one."""
            return lambda *given: take(*given) if self.run.generation.number == number else None

        return {
            "known_children": frozenset(start.child for start in node_plan.starts),
            "on_event": while_current(self._take),
            "on_output": while_current(self._take_piece),
            "on_state": while_current(lambda state, why: self._take_state(node, state, why)),
            "on_samples": while_current(self._take_samples),
        }

    def _name_supervisor(self, node: str, number: int) -> str:
        """The name of the node's supervisor in this generation; a later number if one with standbys was lost."""
        number = self._names[node] = max(number, self._names.get(node, 0) + 1)
        return self.plan.run if number == 1 else f"{self.plan.run}.{number}"

    def _open_standbys(self) -> None:
        """After the first step of all ranks: until then they need the node for themselves."""
        now = self.run.generation
        if self._standbys is None or self._ending or self._standbys.are_open:
            return
        if now.phases[Phase.STEPS] == self.plan.world:
            self._standbys.open(self.plan, lambda node: self._name_supervisor(node, now.number + 1))

    async def _begin(self) -> None:
        """Starts the ranks, and then what they don't wait for: spares and copies of checkpoints."""
        is_started = await self._start_ranks()
        if self._recovery is not None and is_started:
            self._recovery.spares.start()
        if self._copy_settings is not None and len(self.plan.parts) > 1:
            self._copies = CheckpointCopies(self._copy_settings, self._note_uncopied)
            await self._copies.connect(self.plan, self._sessions)

    async def _start_ranks(self) -> bool:
        """Starts all nodes in parallel, each its ranks once the port is known; False if there is no port."""
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def begin(node_plan: NodePlan) -> None:
            session = self._sessions[node_plan.node.name]
            try:
                await self._open_session(session)
                if node_plan.node.name == self.plan.master.node:
                    port.set_result(await session.reserve(self._wanted_port, fixed=self._fixed_port))
                master_port = await asyncio.shield(port)
                env = self._build_generation_env(session, master_port)
                starts = [replace(start, env={**start.env, **env}) for start in node_plan.starts]
                await asyncio.gather(*(session.start(start, await_port=master_port) for start in starts))
            except TransportError as error:
                if not port.done() and node_plan.node.name == self.plan.master.node:
                    port.cancel()
                self._report_start_failure(node_plan, error)
            except asyncio.CancelledError:
                if not port.cancelled():
                    raise

        await asyncio.gather(*(begin(part) for part in self.plan.parts))
        if not port.done() or port.cancelled():
            return False
        self.plan = replace(self.plan, master=replace(self.plan.master, port=port.result()))
        self._note("port", port=port.result())
        return True

    def _note_uncopied(self, node: str, checkpoint: str, why: str) -> None:
        self._note("uncopied", node=node, checkpoint=checkpoint, obstacle="late", why=why)

    async def _open_session(self, session: NodeSession) -> None:
        """Starts the node's supervisor, unless that has standbys and runs."""
        if session.node.name not in self._begun:
            await session.begin()
            self._begun.add(session.node.name)
            if self.plan.code:
                await session.bring(self.plan.code)

    def _build_generation_env(self, session: NodeSession, port: int) -> dict[str, str]:
        """What the ranks of this generation get beyond the plan."""
        env = {"MASTER_PORT": str(port), GENERATION: str(self.run.generation.number)}
        if self.plan.code:
            env[VARIABLE] = encode_earlier(self.run.ledger, self.run.began + session.clock_offset)
        return env

    def _report_start_failure(self, node_plan: NodePlan, error: TransportError) -> None:
        """Marks the ranks as failed if the agent refused a request, else the node as lost."""
        node = node_plan.node.name
        if not isinstance(error, AgentRequestError):
            self._take_state(node, SessionState.LOST, error.seen)
            return
        why = error.seen.removeprefix(f"{node}: ")
        for start in node_plan.starts:
            self._take(Event(node=node, seq=0, at=time(), kind="failed", child=start.child, data={"why": why}))

    async def _wind_down(self, end: EndDecision) -> None:
        """Collects stacks first, then stops all ranks and receives their last output."""
        self._ending = True
        if end.stacks:
            await self._collect_final_snapshot()
        if self._copies is not None and end.finished:
            await self._finish_copies(self._copies)
        farewell = self._lease.farewell
        grace = farewell if end.asked and farewell is not None else self._lease.grace
        if (end.death or end.stuck) and self.plan.code:
            # Our trainer can't save after it has lost a peer, or while one hangs.
            grace = 0.0
        if self._grace_limit is not None:
            grace = min(grace, self._grace_limit)
        ends = [asyncio.create_task(self._see_off(session, grace)) for session in self._sessions.values()]
        if ends:
            await asyncio.wait(ends)

    async def _finish_copies(self, copies: CheckpointCopies) -> None:
        """Waits for the copies of the last checkpoint, unless the user stops the run."""
        waiting = [asyncio.create_task(copies.finish()), asyncio.create_task(self._stop_asked.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    async def _collect_final_snapshot(self) -> None:
        """Takes a snapshot of the nodes and the other ranks after a rank has died, before all are stopped."""
        collected = await collect_evidence(self.plan, self.run, self._sessions, brief=True)
        self._collected = await collect_death_evidence(collected, self.plan, self.run, self._sessions)
        for node in self._collected.snapshots.values():
            for rank, rank_snapshot in node.ranks.items():
                text = rank_snapshot.stack.raw() or NO_STACKS + rank_snapshot.why.get("stack", "")
                # Thousands of hanging ranks mostly have the same stacks: the first ones are enough.
                if self._stacks_room >= len(text):
                    self._stacks_room -= len(text)
                    self.stacks[rank] = text
        self._record.write_stacks(self.stacks)

    async def _see_off(self, session: NodeSession, grace: float) -> None:
        """Stops a node's ranks, without grace once the user asks twice, and waits until its supervisor has exited."""
        is_lost = session.node.name in self.run.generation.lost
        try:
            async with asyncio.timeout(grace + SWEEP_SECONDS):
                if session.node.name not in self._begun or session.state is SessionState.LOST or is_lost:
                    return
                await session.end(0.0 if self._hurry.is_set() else grace)
                gone = asyncio.create_task(session.wait_gone())
                hurry = asyncio.create_task(self._hurry.wait())
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
                self._old_supervisors.end(session)

    # -- messages from the nodes -------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        event = replace(event, rank=self._ranks.get(event.child))
        self.run.apply(event)
        # A flood must not go to the screen, or to the log of a detached run, either.
        if self._record.event(event):
            self._run_observer.event(event)
        if event.kind == "listening":
            self._release_ranks(event)
        self._judge()

    def _release_ranks(self, event: Event) -> None:
        """Lets all ranks connect to rank 0, as soon as its own node sees it listen."""
        if event.node != self.plan.master.node:
            return
        for session in self._sessions.values():
            task = asyncio.create_task(_release(session, event.data["port"]))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    def _take_state(self, node: str, state: SessionState, why: str) -> None:
        session = self._sessions.get(node)
        killed = session.lost_agents if session is not None and state is SessionState.LOST else {}
        if state is SessionState.LOST and self._ending and not killed:
            return
        self._take(Event(node=node, seq=0, at=time(), kind=state.value, data={"why": why, **killed}))

    def _take_lost(self, session: NodeSession, why: str) -> None:
        """A silent node that others can't reach either is not waited for; ranks may still run there."""
        if self._sessions.get(session.node.name) is session:
            self._take(Event(node=session.node.name, seq=0, at=time(), kind=SessionState.LOST.value, data={"why": why}))

    def _note_old_end(self, session: NodeSession) -> None:
        self._note("old_ended", node=session.node.name)
        if monotonic() - session.last_contact >= self._lease.seconds:
            self._take_lost(session, f"no contact for the full lease of {self._lease.seconds:g} s")

    def _take_samples(self, node: str, samples: Mapping[str, Any]) -> None:
        at = samples["wall"]
        for child, values in (("", samples["node"]), *samples["children"].items()):
            metrics = values.get("metrics", {})
            measurement = Measurement(node=node, at=at, child=child, values=values, metrics=metrics)
            self.run.take(measurement)
            if milestone := self.run.find_milestone(measurement):
                self._note(milestone[0], **milestone[1])
            self._watch_stopped(node, child, values, at)
        self._record.samples(node, at, {"node": samples["node"], "children": samples["children"]})

    def _take_piece(self, chunk: OutputChunk) -> None:
        rank = self._ranks[chunk.child]
        if is_suspicious_output(chunk.data):
            self._watch.suspect(time())
        if chunk.data and chunk.stream == "stderr":
            tail = self._tails.setdefault(rank, bytearray())
            tail += chunk.data[-TAIL_BYTES:]
            del tail[:-TAIL_BYTES]
        self._record.add_output(
            chunk.node, rank, chunk.stream, chunk.data, chunk.at, dropped=chunk.dropped, end=chunk.end
        )

    def _watch_stopped(self, node: str, child: str, values: Mapping[str, float], at: float) -> None:
        if not values.get("stopped"):
            self._stopped_since.pop((node, child), None)
            return
        since = self._stopped_since.setdefault((node, child), at)
        if at - since >= STOPPED_SECONDS and self.run.generation.stopped is None:
            self._take(Event(node=node, seq=0, at=since, kind="stopped", child=child))

    def _take_verdict(self, finding: Finding | None) -> None:
        """Records a verdict of the stall monitor and shows it to the observer."""
        if not self._ending:
            self._standing_verdict = finding
            self._note("verdict", findings=build_findings_document([finding] if finding is not None else []))

    def _end_stuck_run(self, judgement: Judgement) -> None:
        self._request_end(EndDecision(why=f"the run is stuck: {judgement.findings[0].code}", stuck=True))

    def _record_snapshot(self, evidence: Evidence, findings: tuple[Finding, ...], *, ended: bool = False) -> None:
        """Records the snapshot behind a verdict, so that it can be judged again."""
        if findings:
            self._snapshot_count += 1
            self._record.add_snapshot(
                build_snapshot(evidence, self._collected.answers, findings, number=self._snapshot_count, ended=ended)
            )
            self._note("looked", number=self._snapshot_count)

    def _judge(self) -> None:
        if self._ending or self._expects_stop or self._end is None or self._end.done():
            return
        first = self.run.generation.first_death
        last_output = "\n".join(line.raw() for line in self._last_lines(self._ranks[first.name])) if first else ""
        end = decide(self.run, len(self._ranks), stderr_tail=Untrusted(last_output), may_move=not self._fixed_port)
        if end is not None:
            self._request_end(end)

    def _last_lines(self, rank: int) -> tuple[Untrusted, ...]:
        return decode_tail(self._tails.get(rank, b""))

    def _request_end(self, end: EndDecision) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(end)
            # A stuck run has shown it since its last progress.
            sign = time() - (self._watch.rhythm.quiet(time()) if end.stuck else 0.0)
            self._note("deciding", why=end.why, death=end.death, unhurt=end.asked or end.stuck, sign=sign)

    def _describe_steps(self) -> dict[str, Any]:
        """What the record needs, beside events, to know what the run cost."""
        saved = self.run.metrics.get("saved")
        steps = {"step": self.run.step, "step_seconds": self.run.ledger.step_seconds}
        return steps if saved is None else {**steps, "saved": int(saved)}

    def _note_dropped(self, *, at_end: bool = False) -> None:
        """Records what nodes sent beyond their space: at first, each time that it has doubled, and at the end."""
        for node, counts in self._record.past_limits.items():
            total, noted = sum(counts.values()), sum(self.run.dropped.get(node, {}).values())
            if total >= 2 * noted or (at_end and total > noted):
                self._note("dropped", node=node, **counts)

    def _note(self, kind: str, node: str = "", **data: Any) -> None:
        """Records an event of the conductor itself."""
        event = Event(node=node, seq=0, at=time(), kind=kind, data=data)
        self.run.apply(event)
        self._record.event(event)
        self._run_observer.event(event)

    async def _tick(self) -> None:
        """Calls the monitor and the observer four times a second, or less often if thousands of ranks slow them."""
        next_tick = 0.0
        last = _measure_idle_time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            began, idle = monotonic(), _measure_idle_time()
            if idle - last >= self._lease.seconds * PAUSED_SHARE:
                self._note("paused", seconds=round(idle - last, 1))
            last = idle
            self._record.tick(began)
            if self._lease.seconds > LOST_SECONDS:
                self._silent_nodes.tick(self._sessions)
            self._note_dropped()
            self._open_standbys()
            if began >= next_tick:
                if not self._ending:
                    self._watch.tick(self.run, time())
                self._run_observer.tick(time())
                next_tick = began + (monotonic() - began) / OBSERVER_SHARE

    # -- the end -----------------------------------------------------------------------------------------

    def _conclude(self, end: EndDecision) -> RunOutcome:
        """The verdict on the generation that has ended."""
        self._note_dropped(at_end=True)
        evidence = self.evidence()
        unhurt = end.asked or end.stuck
        findings = conclude_run(evidence, self._standing_verdict, unhurt=unhurt).findings
        if not unhurt:
            self._record_snapshot(evidence, findings, ended=True)
        death = None if self._is_nested() else find_first_death(evidence)
        code = choose_run_exit_code(end, death, findings)
        return RunOutcome(why=end.why, findings=findings, code=code)

    def _is_nested(self) -> bool:
        """Whether Aboard ended the run because ranks started launchers; clocks may put their deaths before that."""
        return self.run.generation.nested is not None and len(self._ranks) > 1


def _measure_idle_time() -> float:
    """Seconds in which this process did not use a CPU, also while the machine was suspended."""
    # On Linux the monotonic clock stands still then; macOS has no other one, and there it doesn't.
    clock = getattr(time_functions, "CLOCK_BOOTTIME", time_functions.CLOCK_MONOTONIC)
    return time_functions.clock_gettime(clock) - time_functions.process_time()


async def _release(session: NodeSession, port: int) -> None:
    # A node that is lost has its own event.
    with suppress(TransportError):
        await session.release(port)
