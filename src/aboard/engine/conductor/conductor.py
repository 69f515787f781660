"""The conductor: runs generations of a run's ranks, folds their events, and stops all if one fails."""

import asyncio
import logging
import time as time_functions
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, time
from typing import Any, Protocol

from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.core.plan.plan import Plan, add_rank_env
from aboard.core.run import event_kinds as kinds
from aboard.core.run.end_decision import EndDecision, decide
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.lost_nodes import LOST_SECONDS
from aboard.core.run.recovery.recovery_policy import Action, Recovery, StallAction
from aboard.core.run.run_state import Run
from aboard.core.run.saved_markers import MARKERS, format_markers, parse_markers
from aboard.diagnoses import Finding, RunFailure
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.runs import checkpoints
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.death.classify_end import classify_end
from aboard.doctor.shared.fix_commands import omit_relaunch
from aboard.engine.conductor.run_verdicts import RunVerdicts
from aboard.engine.conductor.stall_monitor import RESTART_SECONDS, STAYS_SECONDS, StallMonitor
from aboard.engine.records.plan_file import PlanFile
from aboard.engine.recovery.checkpoint_copies import CheckpointCopies, CopySettings
from aboard.engine.recovery.recover_run import RecoveryFailed, RunRecovery
from aboard.engine.sessions.node_messages import NodeMessages
from aboard.engine.sessions.run_sessions import SWEEP_SECONDS, RunSessions
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.supervisor_messages import OutputChunk

_LOG = logging.getLogger(__name__)

# Wait for further deaths before stopping the other ranks: one of them may have happened earlier.
LATE_DEATH_SECONDS = 0.3
TICK_SECONDS = 0.25
# A conductor that did not run for this share of its lease is worth a note.
PAUSED_SHARE = 0.5
# The share of the conductor's time that the observer may use.
OBSERVER_SHARE = 0.1


class RunObserver(Protocol):
    """Receives a run's events, for display; must neither block nor raise."""

    def began(self, conductor: "Conductor") -> None: ...

    def event(self, event: Event) -> None: ...

    def tick(self, now: float) -> None: ...


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
        plan_file: PlanFile | None = None,
        on_output: Callable[[OutputChunk], None] = lambda _chunk: None,
    ) -> None:
        self.plan = plan
        self.run = Run(id=plan.run)
        # The verdict on the last generation that ended.
        self.verdict: tuple[Finding, ...] = ()
        self._lease = lease
        self._record = record
        self._run_observer = run_observer
        self._fixed_port = fixed_port
        self._recovery = recovery
        self._on_stall = on_stall
        self._earlier = earlier
        self._messages = NodeMessages(
            self.run,
            record,
            show=run_observer.event,
            on_event=self._react,
            on_bad_loss=lambda: self.verdicts.watch.suspect(time()),
        )
        # What ranks print is passed on, beside recording it.
        self._messages.on_output = on_output
        self._messages.expect(plan)
        if recovery is not None:
            recovery.spares.on_change = lambda node, why: self._messages.note(
                kinds.SpareChanged(why=Untrusted(why)), node
            )
        self._plan_file = plan_file
        self._copy_settings = copies
        self._copies: CheckpointCopies | None = None
        self._stop_asked = asyncio.Event()
        self._wanted_port = plan.master.port
        has_standbys = recovery is not None and recovery.settings.has_standbys and bool(plan.code)
        self._sessions = RunSessions(self.run, dialer, lease, self._messages, has_standbys=has_standbys)
        self._end: asyncio.Future[EndDecision] | None = None
        self._stops = 0
        self._stop_reason = ""
        self._grace_limit: float | None = None
        self._expects_stop = False
        self.verdicts = RunVerdicts(self.run, self._messages, record, self._build_monitor)

    # -- public interface --------------------------------------------------------------------------------

    def stop(self, why: str, *, within: float | None = None) -> None:
        """The first call stops the run with a grace period, so that scripts can save; the second, immediately.

        `within` limits the grace period to this many seconds.
        """
        self._stops += 1
        self._stop_reason = why
        self._grace_limit = within
        self._messages.note(kinds.Stopping(why=Untrusted(why)))
        self._stop_asked.set()
        if self._stops > 1:
            self._sessions.hurry.set()
        self._request_end(EndDecision(why=why, asked=True))

    def expect_stop(self) -> None:
        """Blames no rank for its death until `stop` is called: Slurm is ending the job, and is being asked why."""
        self._expects_stop = True

    def tail(self, rank: int) -> tuple[Untrusted, ...]:
        """The last lines that a rank printed."""
        return self._record.tail(rank)

    def evidence(self) -> Evidence:
        return self.verdicts.build_evidence(self.plan)

    async def ask_why(self) -> Judgement:
        """Queries every node for a snapshot and judges why the run makes no progress."""
        why = await self.verdicts.ask_why(self.plan, self._sessions.by_node)
        ends = self._on_stall is StallAction.RESTART or self.run.generation.first_death is not None
        return replace(why, findings=omit_relaunch(why.findings)) if ends and self._recovery is not None else why

    @property
    def stall(self) -> Finding | None:
        """The verdict on a run that makes no progress; None while it progresses."""
        why = self.verdicts.watch.why
        return why.findings[0] if why is not None and why.findings else None

    @property
    def stall_ends(self) -> tuple[StallAction, float] | None:
        """What is done about it, and when, unless the run progresses before; a bug of the program is not restarted."""
        at, stall = self.verdicts.watch.acts_at, self.stall
        if at is None or stall is None:
            return None
        failure = stall.diagnosis
        is_bug = isinstance(failure, RunFailure) and failure.classify(stall.fix.variant) is FailureClass.PROGRAM
        return StallAction.STOP if is_bug else self._on_stall, at

    async def conduct(self) -> kinds.Finished:
        """Runs generations until one ends without a restart, and always leaves the nodes clean; see `verdict`."""
        self._record_plan()
        ticking = asyncio.create_task(self._tick())
        self._run_observer.began(self)
        try:
            number = self._earlier
            while True:
                number += 1
                end = await self._generation(number)
                if end.again and not self._stops and not self._sessions.old_supervisors.sessions:
                    # Another process may use the port for long: let the supervisor pick any free one.
                    self._wanted_port = 0
                    self._messages.note(kinds.Restarting(why=Untrusted(end.why)))
                    await self.verdicts.reset_evidence()
                    continue
                findings, code = self.verdicts.conclude(self.plan, end)
                self.verdict, why = findings, end.why
                gives_up = end.stuck and self._on_stall is StallAction.STOP
                if code == 0 or self._stops or gives_up or self._recovery is None:
                    _LOG.info(
                        "attempt %d was the last: code %d, stops %d, recovery %s",
                        number,
                        code,
                        self._stops,
                        "off" if self._recovery is None else "on",
                    )
                    break
                plan, obstacle = await self._recover(self._recovery, findings, why)
                if plan is None:
                    self.verdict, why = findings, f"{why}; not restarted: {obstacle}"
                    break
                self.plan = plan
                self._record_plan()
                self._messages.expect(plan)
                await self.verdicts.reset_evidence()
            finished = kinds.Finished(why=Untrusted(why), code=code, **self._describe_steps())
            self._messages.note(finished)
            return finished
        finally:
            if self._recovery is not None:
                await self._recovery.spares.stop()
            ticking.cancel()
            await asyncio.wait([ticking])
            await self.verdicts.watch.close()
            await self._sessions.close()
            # Now with the port that was used.
            self._record_plan()

    def _record_plan(self) -> None:
        if self._plan_file is not None:
            self._plan_file.write(self.plan)

    # -- between generations -----------------------------------------------------------------------------

    async def _recover(self, recovery: RunRecovery, findings: tuple[Finding, ...], why: str) -> tuple[Plan | None, str]:
        """The plan of the next generation, or None and why there is none. The verdict is recorded before any wait."""
        active = [part.node.name for part in self.plan.parts]
        failure = classify_end(self.evidence(), findings)
        if recovery.settings.restarts and failure.kind is not FailureClass.PROGRAM:
            self.verdict = omit_relaunch(findings)
            await self._await_settled()
        own_lease = (
            self._sessions.old_supervisors.compute_lease_left(self._lease)
            if failure.code == checkpoints.FOLDER_BUSY.code
            else 0.0
        )
        failure = replace(failure, lost=tuple(self.run.generation.lost), own_lease=own_lease)
        decision = recovery.decide(failure, active)
        _LOG.info(
            "the failure %s is %s; %s on %s: %s, pause %.0f s, wait %.0f s%s",
            failure.code,
            failure.kind.value,
            decision.action.value,
            fold_names(active),
            decision.why or decision.doing,
            decision.pause,
            decision.wait,
            ", after the lease" if decision.lease else "",
        )
        if decision.action is Action.STOP:
            self.verdict = findings

        def note(decision: Recovery, *, again: bool = True) -> None:
            body = kinds.Recovering(
                failure=failure,
                decision=decision,
                seen=Untrusted(findings[0].seen if findings else why),
                fix=Untrusted(self.verdict[0].fix if self.verdict else ""),
                doing=Untrusted(decision.doing),
                most=recovery.attempts,
                again=again,
                **self._describe_steps(),
                findings=self.verdict,
            )
            self._messages.note(body)

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
            await self._sessions.old_supervisors.wait_ended(
                [each.node.name for each in self._sessions.old_supervisors.sessions], longest
            )
        resume = "saved" in self.run.metrics
        plan = await recovery.prepare(decision, active, resume=resume, on_change=on_change)
        if alive := await self._sessions.old_supervisors.wait_ended([part.node.name for part in plan.parts], longest):
            raise RecoveryFailed(f"the ranks of the last attempt on {fold_names(alive)} don't end")
        env = {"TORCHELASTIC_RESTART_COUNT": str(recovery.restarts)}
        given = next((start.env.get(MARKERS) for _node, start in plan.starts()), None)
        if given is not None:
            env[MARKERS] = format_markers((*self.run.markers, *parse_markers(given)))
        return add_rank_env(plan, env)

    async def _await_settled(self) -> None:
        """Waits until nodes that are silent are back, are lost, or can be reached by others."""
        lost = self.run.generation.lost
        if silent := self._sessions.old_supervisors.list_unsettled(lost):
            why = Untrusted(f"waiting until {fold_names(silent)} is back or lost")
            self._messages.note(kinds.Settling(nodes=tuple(silent), why=why, findings=self.verdict))
        while self._sessions.old_supervisors.list_unsettled(lost) and not self._stops:  # noqa: ASYNC110 - time passes, too
            await asyncio.sleep(TICK_SECONDS)

    def _build_monitor(self) -> StallMonitor:
        act = None if self._on_stall is StallAction.REPORT else self._end_stuck_run
        stays = STAYS_SECONDS if self._on_stall is StallAction.STOP else RESTART_SECONDS
        return StallMonitor(self.ask_why, self._take_verdict, act, stays=stays)

    # -- one generation ----------------------------------------------------------------------------------

    async def _generation(self, number: int) -> EndDecision:
        prepared = await self._sessions.take_standbys(self.plan)
        self._copies = None
        self._end = asyncio.get_running_loop().create_future()
        self._sessions.prepare(self.plan, prepared, number)
        if self._stops:
            # It was asked for between two generations.
            self._messages.note(kinds.Stopping(why=Untrusted(self._stop_reason)))
            self._request_end(EndDecision(why=self._stop_reason, asked=True))
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

    async def _begin(self) -> None:
        """Starts the ranks, and then what they don't wait for: spares and copies of checkpoints."""
        if self._stops:
            return
        port = await self._sessions.start_ranks(self.plan, self._wanted_port, fixed=self._fixed_port)
        if port is not None:
            self.plan = replace(self.plan, master=replace(self.plan.master, port=port))
            self._messages.note(kinds.PortChosen(port=port))
        if self._recovery is not None and port is not None:
            self._recovery.spares.start()
        if self._copy_settings is not None and len(self.plan.parts) > 1:
            self._copies = CheckpointCopies(self._copy_settings, self._note_uncopied)
            await self._copies.connect(self.plan, self._sessions.by_node)

    def _note_uncopied(self, node: str, checkpoint: str, why: str) -> None:
        missing = kinds.MissingCopy(checkpoint=Untrusted(checkpoint), obstacle="late", why=Untrusted(why))
        self._messages.note(missing, node)

    async def _wind_down(self, end: EndDecision) -> None:
        """Collects stacks first, then stops all ranks and receives their last output."""
        self._sessions.is_ending = True
        if end.stacks:
            await self.verdicts.collect_final_snapshot(self.plan, self._sessions.by_node)
        if self._copies is not None and end.finished:
            await self._finish_copies(self._copies)
        _LOG.debug("ending the ranks of %s", fold_names(self._sessions.by_node))
        farewell = self._lease.farewell
        grace = farewell if end.asked and farewell is not None else self._lease.grace
        if (end.death or end.stuck or self.run.generation.lost) and self.plan.code:
            # Our trainer can't save after it has lost a peer, or while one hangs.
            grace = 0.0
        if self._grace_limit is not None:
            grace = min(grace, self._grace_limit)
        await self._sessions.end(grace)

    async def _finish_copies(self, copies: CheckpointCopies) -> None:
        """Waits for the copies of the last checkpoint, unless the user stops the run."""
        waiting = [asyncio.create_task(copies.finish()), asyncio.create_task(self._stop_asked.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    # -- what events call for -----------------------------------------------------------------------------

    def _react(self, event: Event) -> None:
        # Rank 0's own node sees it listen.
        if isinstance(event.body, kinds.Listening) and event.node == self.plan.master.node:
            self._sessions.release_ranks(event.body.port)
        self._judge()

    def _take_verdict(self, finding: Finding | None) -> None:
        if not self._sessions.is_ending:
            self.verdicts.take(finding)

    def _end_stuck_run(self, judgement: Judgement) -> None:
        self._request_end(EndDecision(why=f"the run is stuck: {judgement.findings[0].code}", stuck=True))

    def _judge(self) -> None:
        if self._sessions.is_ending or self._expects_stop or self._end is None or self._end.done():
            return
        first, ranks = self.run.generation.first_death, self._messages.ranks
        last_output = (
            "\n".join(line.raw() for line in self._messages.get_last_lines(ranks[first.name])) if first else ""
        )
        end = decide(self.run, len(ranks), stderr_tail=Untrusted(last_output), may_move=not self._fixed_port)
        if end is not None:
            self._request_end(end)

    def _request_end(self, end: EndDecision) -> None:
        if self._end is not None and not self._end.done():
            _LOG.info("the attempt ends: %s", end.why)
            self._end.set_result(end)
            # A stuck run has shown it since its last progress.
            sign = time() - (self.verdicts.watch.rhythm.quiet(time()) if end.stuck else 0.0)
            was_stopped = end.asked or end.stuck
            self._messages.note(
                kinds.Deciding(why=Untrusted(end.why), death=end.death, was_stopped=was_stopped, sign=sign)
            )

    def _describe_steps(self) -> dict[str, Any]:
        """What the record needs, beside events, to know what the run cost."""
        saved = self.run.metrics.get("saved")
        steps = {"step": self.run.step, "step_seconds": self.run.ledger.step_seconds}
        return steps if saved is None else {**steps, "saved": int(saved)}

    async def _tick(self) -> None:
        """Calls the monitor and the observer four times a second, or less often if thousands of ranks slow them."""
        next_tick = 0.0
        last = _measure_idle_time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            began, idle = monotonic(), _measure_idle_time()
            if idle - last >= self._lease.seconds * PAUSED_SHARE:
                self._messages.note(kinds.ConductorPaused(seconds=round(idle - last, 1)))
            last = idle
            self._record.tick(began)
            if self._lease.seconds > LOST_SECONDS:
                self._sessions.silent_nodes.tick(self._sessions.by_node)
            self._messages.note_dropped()
            if window := self._messages.close_lateness_window(time()):
                self.verdicts.watch.rhythm.take_lateness(window)
            spares = () if self._recovery is None else self._recovery.spares.parts
            self._sessions.open_standbys(self.plan, spares)
            if began >= next_tick:
                if not self._sessions.is_ending:
                    self.verdicts.watch.tick(self.run, time())
                self._run_observer.tick(time())
                next_tick = began + (monotonic() - began) / OBSERVER_SHARE


def _measure_idle_time() -> float:
    """Seconds in which this process did not use a CPU, also while the machine was suspended."""
    # On Linux the monotonic clock stands still then; macOS has no other one, and there it doesn't.
    clock = getattr(time_functions, "CLOCK_BOOTTIME", time_functions.CLOCK_MONOTONIC)
    return time_functions.clock_gettime(clock) - time_functions.process_time()
