"""One launch as a session: sets up its record, run claim, control socket and signal handlers, and cleans them up."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import SystemRandom
from time import time
from typing import TYPE_CHECKING, Any, Self

from aboard.core.exit_codes import EXIT_BLOCKED, EXIT_INTERRUPTED
from aboard.core.plan.plan import Plan
from aboard.core.run.event_kinds import Finished, Stopping
from aboard.core.run.events import Event
from aboard.core.slurm.job_ending import JobEnding
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.check.check_observer import CheckObserver
from aboard.engine.conductor.conductor import Conductor, RunObserver
from aboard.engine.conductor.control_socket import serve_control, serve_script_control
from aboard.engine.launch_run import LaunchResult, LaunchSpec, launch
from aboard.engine.monitoring.metrics_file import MetricsFile
from aboard.engine.monitoring.run_notifier import RunNotifier
from aboard.engine.records.decision_log import write_decisions
from aboard.engine.slurm.continue_job import continue_training, requeue_job
from aboard.engine.slurm.job_conductor import JobWatch, record_own_job
from aboard.engine.slurm.watch_job import VIEWER_SECONDS
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.transport.node_dialer import NodeDialer

if TYPE_CHECKING:
    from aboard.engine.scripts.node_script import ScriptObserver

# Assumed for a node without a slot count, to divide the log space among ranks.
USUAL_SLOTS = 8


class LaunchSession:
    """A launch with its run directory: a new one, or that of a run that was submitted to Slurm."""

    def __init__(self, spec: LaunchSpec) -> None:
        runs = Runs.of(os.environ)
        now = datetime.now(UTC).astimezone()
        self.spec = spec
        self.run = runs.create(now, SystemRandom()) if spec.run is None else runs.open_or_create(spec.run)
        job = record_own_job(self.run, os.environ)
        self._watch = None if job is None else JobWatch(job, os.environ)

    async def conduct(
        self,
        *,
        check_observer: CheckObserver,
        run_observer: RunObserver,
        encode_plan: Callable[[Plan], Any],
        dialer: NodeDialer | None = None,
        on_report: Callable[[CheckReport], None] = lambda _report: None,
        script_observer: "ScriptObserver | None" = None,
    ) -> LaunchResult:
        """Launches; SIGINT, SIGTERM and SIGHUP stop it like Ctrl-C. `encode_plan` leaves out the plan's secrets.

        In a Slurm job, so do SIGUSR1, which announces the time limit, and a notice of preemption; the ranks then have
        only the time that Slurm leaves.
        """
        claim = self.run.claim()
        record = Record.open(self.run, ranks=_estimate_ranks(self.spec), nodes=len(self.spec.cluster))
        stop = _SignalHandler(self._watch)
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(stop)
                stack.enter_context(write_decisions(self.run))
                cluster = self.spec.cluster
                metrics = stack.enter_context(MetricsFile(cluster.textfile, record, run_observer))
                notifier = RunNotifier(cluster.notify, record, metrics)
                await stack.enter_async_context(notifier)
                control = await stack.enter_async_context(_Control(self.run, stop.stop))

                def began(conductor: Conductor | None) -> None:
                    if stop.conductor is not None:
                        # Now with the port that was used.
                        record.write_plan(encode_plan(stop.conductor.plan))
                    # Between two runs of a script, a signal ends the script.
                    stop.conductor = conductor
                    control.serve_for(conductor)
                    if conductor is None:
                        return
                    record.write_plan(encode_plan(conductor.plan))
                    # Its nodes may differ.
                    conductor.on_plan = lambda plan: record.write_plan(encode_plan(plan))

                begin = launch
                if self.spec.script is not None:
                    # The tables of all launchers' flags come with them.
                    from aboard.engine.scripts.launch_script import launch_script  # noqa: PLC0415 - the reason is above
                    from aboard.engine.scripts.script_sessions import ScriptLog  # noqa: PLC0415 - the reason is above

                    control.serve_for(None)
                    watch = self._watch
                    begin = partial(
                        launch_script,
                        script_observer=script_observer or ScriptLog(sys.stdout),
                        is_ending=lambda: watch is not None and watch.ending is not None,
                    )
                result = await begin(
                    self.spec,
                    record,
                    check_observer=check_observer,
                    run_observer=notifier,
                    dialer=dialer,
                    on_report=on_report,
                    on_conductor=began,
                )
                if self.spec.script is not None:
                    result = await self._conclude_script(result, notifier)
                if stop.conductor is not None:
                    # Now with the port that was used.
                    record.write_plan(encode_plan(stop.conductor.plan))
                notifier.tell_unstarted(result.blockers)
            if result.outcome is not None:
                number = result.progress.generation if result.progress is not None else 1
                record.write_findings(result.findings, generation=number)
                result = replace(result, continuation=await self._continue_job(result))
            else:
                record.write_findings(result.blockers)
            return replace(result, dropped=dict(record.dropped))
        except asyncio.CancelledError:
            if stop.interrupt is not None:
                stopping = Stopping(why=Untrusted(f"{stop.interrupt} before ranks started"))
                record.event(Event(node="", at=time(), body=stopping))
                raise stop.interrupt from None
            raise
        finally:
            record.close()
            claim.release()

    async def requeue(self) -> None:
        """Requeues the job if Slurm gave notice that it will; call it when all has been shown.

        Slurm ends this process as soon as it requeues the job, and ends the steps of viewers with this process.
        """
        if self._watch is not None:
            await asyncio.sleep(VIEWER_SECONDS if self.spec.run is not None else 0)
            await requeue_job(self._watch)

    async def _conclude_script(self, result: LaunchResult, notifier: RunNotifier) -> LaunchResult:
        """Records how a script ended as the end of the run, which its exit code, status, `why` and page agree on."""
        outcome, end = result.outcome, result.script
        why = "" if end is None else f"the script on {end.node} {end.reason}"
        code = 0 if end is None else end.exit_code
        if result.refused:
            # It has run until then: no preflight has refused it.
            seen = Untrusted(why or result.refused[0].seen)
            notifier.note_end(Finished(code=code or EXIT_BLOCKED, why=seen), refused=True)
        elif outcome is None and code:
            notifier.note_end(Finished(code=code, why=Untrusted(why)))
        elif outcome is None and end is not None:
            notifier.note_end(Finished(code=0, why=Untrusted(f"{why}, and called no launcher"), monitored=False))
            if self._watch is not None:
                await self._watch.mark_unmonitored()
        if outcome is None or end is None:
            return result
        if outcome.code == 0 and end.code != 0:
            from aboard.core.launchers.capture_failures import build_late_failure  # noqa: PLC0415 - only for scripts

            failure = build_late_failure(self.run.id, end.node, end.reason)
            outcome = replace(outcome, code=end.exit_code, why=Untrusted(why))
            result = replace(result, outcome=outcome, findings=(failure, *result.findings))
        notifier.note_end(outcome)
        return result

    async def _continue_job(self, result: LaunchResult) -> str:
        if (
            self._watch is None
            or result.outcome is None
            or result.outcome.code != EXIT_INTERRUPTED
            or result.progress is None
        ):
            return ""
        status = result.progress.training
        saved = status.saved if status is not None else None
        return await continue_training(self._watch, self.run, os.environ, limit=self.spec.resubmits, saved=saved)


class _Control:
    """Answers other commands: for the conductor while there is one, and for a script otherwise."""

    def __init__(self, run: RunDirectory, stop: Callable[[str], None]) -> None:
        self._run = run
        self._stop = stop
        self._serving = AsyncExitStack()
        self._changes: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._changes)
        await self._serving.aclose()

    def serve_for(self, conductor: Conductor | None) -> None:
        self._changes.append(asyncio.create_task(self._change(conductor)))

    async def _change(self, conductor: Conductor | None) -> None:
        async with self._changing:
            await self._serving.aclose()
            if conductor is not None:
                await self._serving.enter_async_context(serve_control(self._run, conductor))
            else:
                await self._serving.enter_async_context(serve_script_control(self._run, self._stop))


class _SignalHandler:
    """A signal cancels the preflight; once there is a conductor, it stops the run: first gently, then immediately.

    Slurm's signals stop the run only once, since Slurm repeats them, and kills the job by itself.
    """

    def __init__(self, watch: JobWatch | None) -> None:
        self.conductor: Conductor | None = None
        self._watch = watch
        self._task = asyncio.current_task()
        self._asking: set[asyncio.Task[None]] = set()
        self._ending = False
        self._why = ""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_signal, number.name)
        if self._watch is not None:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                loop.add_signal_handler(number, self._handle_slurm_signal, self._watch, number.name)
            self._stop_after(self._watch.wait_for_notice())
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._asking:
            task.cancel()

    @property
    def interrupt(self) -> KeyboardInterrupt | None:
        """What a launch raises that a signal stopped before it had a conductor."""
        return KeyboardInterrupt(self._why) if self._why else None

    def stop(self, why: str) -> None:
        """Stops the run, or what precedes it."""
        self._stop(why, None)

    def _handle_signal(self, name: str) -> None:
        self._stop(f"aboard received {name}", None)

    def _handle_slurm_signal(self, watch: JobWatch, name: str) -> None:
        if self.conductor is not None:
            self.conductor.expect_stop()
        self._stop_after(watch.explain_signal(name))

    def _stop_after(self, explanation: Awaitable[JobEnding]) -> None:
        task = asyncio.create_task(self._stop_for_slurm(explanation))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _stop_for_slurm(self, explanation: Awaitable[JobEnding]) -> None:
        ending = await explanation
        # The user may have stopped the run before: Slurm's signal must not cut short what ranks are saving.
        stopping = self.conductor is not None and bool(self.conductor.run.stopping)
        if not self._ending and not stopping:
            self._ending = True
            self._stop(ending.why, ending.seconds)

    def _stop(self, why: str, within: float | None) -> None:
        if self.conductor is not None:
            self.conductor.stop(why, within=within)
        elif self._task is not None:
            self._why = why
            self._task.cancel()


def _estimate_ranks(spec: LaunchSpec) -> int:
    return sum(spec.request.ranks or node.slots or USUAL_SLOTS for node in spec.cluster)
