"""One launch as a session: sets up its record, run claim, control socket and signal handlers, and cleans them up."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from random import SystemRandom
from time import time
from typing import TYPE_CHECKING

from aboard.core.exit_codes import EXIT_BLOCKED, EXIT_INTERRUPTED
from aboard.core.run.event_kinds import Finished, Stopping
from aboard.core.run.events import Event
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.check.check_observer import CheckObserver
from aboard.engine.conductor.conductor import RunObserver
from aboard.engine.launch_run import LaunchResult, launch
from aboard.engine.monitoring.metrics_file import MetricsFile
from aboard.engine.monitoring.run_notifier import RunNotifier
from aboard.engine.records.decision_log import write_decisions
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.run_control import RunControl, RunSignals
from aboard.engine.slurm.continue_job import continue_training, requeue_job
from aboard.engine.slurm.job_conductor import JobWatch, record_own_job
from aboard.engine.slurm.watch_job import VIEWER_SECONDS
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.transport.node_dialer import NodeDialer

if TYPE_CHECKING:
    # The tables of all launchers' flags come with it.
    from aboard.engine.scripts.node_script import ScriptObserver

# Assumed for a node without a slot count, to divide the log space among ranks.
USUAL_SLOTS = 8


class LaunchSession:
    """A launch with its run directory: a new one, or that of a run that was submitted to Slurm."""

    def __init__(self, spec: LaunchSpec) -> None:
        runs = Runs.of(spec.environ)
        now = datetime.now(UTC).astimezone()
        self.spec = spec
        self.run = runs.create(now, SystemRandom()) if spec.run is None else runs.open_or_create(spec.run)
        job = record_own_job(self.run, spec.environ)
        self._watch = None if job is None else JobWatch(job, spec.environ)

    async def conduct(
        self,
        *,
        check_observer: CheckObserver,
        run_observer: RunObserver,
        script_observer: "ScriptObserver",
        dialer: NodeDialer | None = None,
        on_report: Callable[[CheckReport], None] = lambda _report: None,
    ) -> LaunchResult:
        """Launches; SIGINT, SIGTERM and SIGHUP stop it like Ctrl-C.

        In a Slurm job, so do SIGUSR1, which announces the time limit, and a notice of preemption; the ranks then have
        only the time that Slurm leaves.
        """
        claim = self.run.claim()
        record = Record.open(self.run, ranks=_estimate_ranks(self.spec), nodes=len(self.spec.cluster))
        signals = RunSignals(self._watch)
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(signals)
                stack.enter_context(write_decisions(self.run))
                cluster = self.spec.cluster
                metrics = stack.enter_context(MetricsFile(cluster.textfile, record, run_observer))
                notifier = RunNotifier(cluster.notify, record, metrics, self.spec.environ)
                await stack.enter_async_context(notifier)
                is_script = self.spec.script is not None
                control = RunControl(self.run, signals, notifier, is_script=is_script)
                await stack.enter_async_context(control)
                if is_script:
                    # The tables of all launchers' flags come with it.
                    from aboard.engine.scripts.launch_script import launch_script  # noqa: PLC0415 - the reason is above

                    scripted = await launch_script(
                        self.spec,
                        record,
                        control,
                        check_observer=check_observer,
                        script_observer=script_observer,
                        on_report=on_report,
                        dialer=dialer,
                        watch=self._watch,
                    )
                    result = await self._conclude_script(scripted, notifier)
                else:
                    result = await launch(
                        self.spec,
                        record,
                        check_observer=check_observer,
                        run_observer=control,
                        on_report=on_report,
                        dialer=dialer,
                    )
                notifier.tell_unstarted(result.blockers)
            return replace(await self._record_end(record, result), dropped=dict(record.dropped))
        except asyncio.CancelledError:
            if signals.interrupt is not None:
                stopping = Stopping(why=Untrusted(f"{signals.interrupt} before ranks started"))
                record.event(Event(node="", at=time(), body=stopping))
                raise signals.interrupt from None
            raise
        finally:
            record.close()
            claim.release()

    async def _record_end(self, record: Record, result: LaunchResult) -> LaunchResult:
        """Records the findings, and continues the run as a further Slurm job if it should be."""
        if result.outcome is None:
            record.write_findings(result.blockers)
            return result
        number = result.progress.generation if result.progress is not None else 1
        record.write_findings(result.findings, generation=number)
        return replace(result, continuation=await self._continue_job(result))

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
        return await continue_training(self._watch, self.run, self.spec.environ, limit=self.spec.resubmits, saved=saved)


def _estimate_ranks(spec: LaunchSpec) -> int:
    return sum(spec.request.ranks or node.slots or USUAL_SLOTS for node in spec.cluster)
