"""A launch that begins with a script: each launcher that the script calls is replaced by a run.

The script goes on when the run is over, as if its launcher had returned.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from random import SystemRandom

from aboard.core.launchers.command_kind import build_script_program
from aboard.core.probes.facts import Facts
from aboard.diagnoses import InputError, Severity
from aboard.doctor.software import subject as software
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.check.check_observer import CheckObserver
from aboard.engine.launch_run import LaunchResult, check_launch, launch
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.run_control import RunControl
from aboard.engine.scripts.node_script import ScriptObserver
from aboard.engine.scripts.script_stages import FIRST_SUBJECTS, ScriptStages
from aboard.engine.scripts.stage import Stage, refuse_script
from aboard.engine.slurm.job_conductor import JobWatch
from aboard.record.run_record import Record
from aboard.record.runs import make_run_id
from aboard.transport.node_dialer import NodeDialer

# For slurmctld's answer why it ends the job, and for the script's end after that of its ranks.
SLURM_SECONDS = 2.0


async def launch_script(
    spec: LaunchSpec,
    record: Record,
    control: RunControl,
    *,
    check_observer: CheckObserver,
    script_observer: ScriptObserver,
    on_report: Callable[[CheckReport], None],
    dialer: NodeDialer | None = None,
    watch: JobWatch | None = None,
) -> LaunchResult:
    """Runs the script on rank 0's node, and on all others once it has called a launcher that each node must call.

    The result is that of the first run that failed, or of the last one. `watch` knows whether Slurm ends the job,
    and little time is left for the script.
    """
    dialer = dialer or NodeDialer()
    if not _runs_in_job(spec):
        # The scripts keep the links of the check; the ranks need others.
        dialer.begin(spec.cluster, links=2)
    report = await _probe_first(spec, dialer, check_observer)
    if report.by_subject:
        on_report(report)
    if _is_blocked(report):
        await dialer.close()
        return LaunchResult(report=report)
    stages = ScriptStages(spec, report.facts, dialer, record.run.id, script_observer, record, check_observer)
    try:
        async with aclosing(stages.follow()) as following:
            async for stage in following:
                running = launch(
                    stage.spec,
                    record,
                    check_observer=check_observer,
                    run_observer=control,
                    on_report=on_report,
                    dialer=dialer,
                    known=report.facts,
                    checking=stage.checking,
                    on_output=stages.print_output,
                )
                ended = await _await_run(asyncio.create_task(running), stage, control, in_job=_runs_in_job(spec))
                await stages.finish(stage, ended)
    except InputError as error:
        return refuse_script(error)
    finally:
        is_ending = watch is not None and watch.ending is not None
        await stages.end(within=SLURM_SECONDS if is_ending else None)
        await dialer.close()
    return stages.result


async def _await_run(
    running: asyncio.Task[LaunchResult], stage: Stage, control: RunControl, *, in_job: bool
) -> LaunchResult:
    """The result of a stage's run, which is stopped if its script calls a second launcher or ends the first one."""
    whys = {each.parallel: "the script called a second launcher" for each in stage.scripts}
    whys |= {each.withdrawn: "its launcher was ended" for each in stage.scripts}
    waits = {asyncio.create_task(event.wait()): why for event, why in whys.items()}
    try:
        done, _ = await asyncio.wait([running, *waits], return_when=asyncio.FIRST_COMPLETED)
        for why in (why for task, why in waits.items() if task in done):
            if control.conductor is None:
                return LaunchResult(report=None)
            # Slurm signals all processes of a job that it ends; that reason, and its time, come first.
            await asyncio.wait([running], timeout=SLURM_SECONDS if in_job else 0)
            _stop_run(stage, control, why)
        return await running
    finally:
        for task in (running, *waits):
            task.cancel()
        await asyncio.wait([running, *waits])
        control.ended()


def _stop_run(stage: Stage, control: RunControl, why: str) -> None:
    """Stops a run for what its script did, unless something else stops it."""
    conductor = control.conductor
    if conductor is not None and not conductor.run.stopping:
        conductor.stop(why)
        return
    for each in stage.scripts:
        each.withdrawn.clear()


async def capture_launch(
    spec: LaunchSpec, script_observer: ScriptObserver, check_observer: CheckObserver
) -> tuple[LaunchSpec | LaunchResult, Facts]:
    """The launch that the script's first launcher was called for, or why there is none; the script is ended there."""
    dialer = NodeDialer()
    report = await _probe_first(spec, dialer, check_observer)
    if _is_blocked(report):
        await dialer.close()
        return LaunchResult(report=report), report.facts
    run = make_run_id(datetime.now(UTC), SystemRandom())
    stages = ScriptStages(spec, report.facts, dialer, run, script_observer)
    try:
        async with aclosing(stages.follow()) as following:
            async for stage in following:
                return stage.spec, report.facts
    except InputError as error:
        return refuse_script(error), report.facts
    finally:
        await stages.end()
        await dialer.close()
    return stages.result, report.facts


def _runs_in_job(spec: LaunchSpec) -> bool:
    return spec.script is not None and spec.script.job_reader is not None


async def _probe_first(spec: LaunchSpec, dialer: NodeDialer, check_observer: CheckObserver) -> CheckReport:
    """What can be checked before the script has chosen an interpreter; the links are kept."""
    first = [subject for subject in spec.subjects if subject.name in FIRST_SUBJECTS]
    # In a Slurm job, only the host of the script needs it.
    subjects = [*first, *([] if _runs_in_job(spec) else [software.SCRIPT_SUBJECT])] if spec.subjects else []
    script = spec.script
    request = spec.request
    if script is not None:
        request = replace(request, program=build_script_program(script.script.words))
    return await check_launch(replace(spec, subjects=subjects, request=request), dialer, check_observer)


def _is_blocked(report: CheckReport) -> bool:
    return bool(report.by_subject) and any(each.severity is Severity.BLOCK for each in report.findings)
