"""One launch as a session: sets up its record, run claim, control socket and signal handlers, and cleans them up."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

from aboard.core.cluster.cluster import Cluster
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import Plan
from aboard.core.run.lease import Lease
from aboard.core.slurm.job_ending import JobEnding
from aboard.flows.check.check_cluster import CheckReport
from aboard.flows.check.check_observer import CheckObserver
from aboard.flows.launch.conductor import Conductor, RunObserver
from aboard.flows.launch.control_socket import serve_control
from aboard.flows.launch.launch_run import LaunchResult, Payload, Preflight, launch
from aboard.flows.slurm.continue_job import continue_training
from aboard.flows.slurm.job_conductor import JobWatch
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer

# Assumed for a node without a slot count, to divide the log space among ranks.
USUAL_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """The inputs of a launch. `encode_plan` encodes a plan for the record, without its secrets.

    In a Slurm job, `watch` knows why Slurm ends it; up to `resubmits` further jobs continue a training.
    """

    cluster: Cluster
    request: LaunchRequest
    preflight: Preflight
    lease: Lease
    run: RunDirectory
    encode_plan: Callable[[Plan], Any]
    payload: Payload | None = None
    watch: JobWatch | None = None
    resubmits: int = 0


async def run_launch_session(
    spec: LaunchSpec,
    *,
    watcher: CheckObserver,
    viewer: RunObserver,
    dialer: NodeDialer | None = None,
    on_report: Callable[[CheckReport], None] = lambda _report: None,
) -> tuple[LaunchResult, dict[str, int]]:
    """Returns the result and what the record had to drop. SIGINT, SIGTERM and SIGHUP stop the launch like Ctrl-C.

    In a Slurm job, so do SIGUSR1, which announces the time limit, and a notice of preemption; the ranks then have only
    the time that Slurm leaves.
    """
    claim = spec.run.claim()
    record = Record.open(spec.run, ranks=_estimate_ranks(spec), nodes=len(spec.cluster))
    stop = _SignalHandler(spec.watch)
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(stop)
            answering: list[asyncio.Task[Any]] = []

            def began(conductor: Conductor) -> None:
                stop.conductor = conductor
                record.write_plan(spec.encode_plan(conductor.plan))
                answering.append(asyncio.create_task(stack.enter_async_context(serve_control(spec.run, conductor))))

            result = await launch(
                spec.cluster,
                spec.request,
                spec.preflight,
                record,
                watcher=watcher,
                viewer=viewer,
                lease=spec.lease,
                dialer=dialer,
                payload=spec.payload,
                on_report=on_report,
                on_conductor=began,
            )
            await asyncio.gather(*answering)
            if stop.conductor is not None:
                # Now with the port that was used.
                record.write_plan(spec.encode_plan(stop.conductor.plan))
        if result.outcome is not None:
            record.write_findings(result.outcome.findings)
            result = replace(result, continuation=await _continue_job(spec, result))
        else:
            record.write_findings(result.blockers)
        return result, dict(record.dropped)
    except asyncio.CancelledError:
        if stop.interrupt is not None:
            raise stop.interrupt from None
        raise
    finally:
        record.close()
        claim.release()


async def _continue_job(spec: LaunchSpec, result: LaunchResult) -> str:
    if spec.watch is None or result.outcome is None or result.outcome.code != EXIT_INTERRUPTED or result.roster is None:
        return ""
    way = result.roster.way
    saved = way.saved if way is not None else None
    return await continue_training(spec.watch, spec.run, os.environ, limit=spec.resubmits, saved=saved)


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
