"""`aboard launch -- bash run.sh`: runs the script, and conducts a run in place of each launcher that it calls."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import SystemRandom
from typing import Any

from aboard.core.launchers.command_kind import build_script_program
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Severity
from aboard.doctor.software import subject as software
from aboard.engine.check.check_cluster import CheckReport, build_dialer
from aboard.engine.check.check_observer import CheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import LaunchResult, LaunchSpec, check_launch, launch
from aboard.engine.scripts.node_script import ScriptObserver
from aboard.engine.scripts.script_sessions import ScriptSessions
from aboard.engine.scripts.script_stages import FIRST_SUBJECTS, ScriptStages
from aboard.record.run_record import Record
from aboard.record.runs import make_run_id
from aboard.transport.node_dialer import NodeDialer

# For slurmctld's answer why it ends the job, and for the script's end after that of its ranks.
SLURM_SECONDS = 2.0


async def launch_script(
    spec: LaunchSpec,
    record: Record,
    *,
    script_observer: ScriptObserver,
    check_observer: CheckObserver,
    on_conductor: Callable[[Conductor | None], None],
    dialer: NodeDialer | None = None,
    on_report: Callable[[CheckReport], None] = lambda _report: None,
    is_ending: Callable[[], bool] = lambda: False,
    **watching: Any,
) -> LaunchResult:
    """Runs the script on rank 0's node, and on all others once it has called a launcher that each node must call.

    The result is that of the first run that failed, or of the last one. `on_conductor` gets None when a run is over.
    `is_ending` tells whether Slurm ends the job, and little time is left.
    """
    dialer = dialer or build_dialer(check_observer)
    if not _runs_in_job(spec):
        # The scripts keep the links of the check; the ranks need others.
        dialer.begin(spec.cluster, links=2)
    report = await _probe_first(spec, dialer, check_observer)
    if report.by_subject:
        on_report(report)
    if _is_blocked(report):
        await dialer.close()
        return LaunchResult(report=report)
    open_sessions = partial(_open_sessions, record.run.id, spec, record, script_observer)

    async def conduct(
        stage: LaunchSpec, scripts: Sequence[ScriptSessions], checking: asyncio.Task[CheckReport] | None
    ) -> LaunchResult:
        conductors: list[Conductor] = []

        def began(conductor: Conductor) -> None:
            conductors.append(conductor)
            conductor.pass_output_on(stages.print_output)
            on_conductor(conductor)

        running = asyncio.create_task(
            launch(
                stage,
                record,
                check_observer=check_observer,
                on_report=on_report,
                on_conductor=began,
                dialer=dialer,
                known=report.facts,
                checking=checking,
                **watching,
            )
        )
        whys = {each.parallel: "the script called a second launcher" for each in scripts}
        whys |= {each.withdrawn: "its launcher was ended" for each in scripts}
        waits = {asyncio.create_task(event.wait()): why for event, why in whys.items()}
        try:
            done, _ = await asyncio.wait([running, *waits], return_when=asyncio.FIRST_COMPLETED)
            for why in (why for task, why in waits.items() if task in done):
                if not conductors:
                    return LaunchResult(report=None)
                # Slurm signals all processes of a job that it ends; that reason, and its time, come first.
                await asyncio.wait([running], timeout=SLURM_SECONDS if _runs_in_job(spec) else 0)
                _stop_run(conductors[0], scripts, why)
            return await running
        finally:
            for task in (running, *waits):
                task.cancel()
            await asyncio.wait([running, *waits])
            on_conductor(None)

    check = partial(check_launch, dialer=dialer, check_observer=check_observer)
    stages = ScriptStages(spec, report.facts, dialer, open_sessions, check)
    try:
        return await stages.run(conduct)
    finally:
        await stages.end(within=SLURM_SECONDS if is_ending() else None)
        await dialer.close()


def _runs_in_job(spec: LaunchSpec) -> bool:
    return spec.script is not None and spec.script.job is not None


def _stop_run(conductor: Conductor, scripts: Sequence[ScriptSessions], why: str) -> None:
    """Stops a run for what its script did, unless something else stops it."""
    if not conductor.run.stopping:
        conductor.stop(why)
        return
    for each in scripts:
        each.withdrawn.clear()


async def capture_launch(
    spec: LaunchSpec, script_observer: ScriptObserver, check_observer: CheckObserver
) -> tuple[LaunchSpec | LaunchResult, Facts]:
    """The launch that the script's first launcher was called for, or why there is none; the script is ended there."""
    dialer = build_dialer(check_observer)
    report = await _probe_first(spec, dialer, check_observer)
    if _is_blocked(report):
        await dialer.close()
        return LaunchResult(report=report), report.facts
    run = make_run_id(datetime.now(UTC), SystemRandom())
    stages = ScriptStages(spec, report.facts, dialer, partial(_open_sessions, run, spec, None, script_observer))
    captured: list[LaunchSpec] = []

    async def note(stage: LaunchSpec, *_others: object) -> LaunchResult:
        captured.append(stage)
        return LaunchResult(report=None)

    try:
        result = await stages.run(note)
    finally:
        await stages.end()
        await dialer.close()
    return captured[0] if captured else result, report.facts


def _open_sessions(
    run: str, spec: LaunchSpec, record: Record | None, observer: ScriptObserver, dialer: NodeDialer, first: int
) -> ScriptSessions:
    job = None if spec.script is None else spec.script.job
    return ScriptSessions(run, dialer, spec.lease, record, observer, job, first)


async def _probe_first(spec: LaunchSpec, dialer: NodeDialer, check_observer: CheckObserver) -> CheckReport:
    """What can be checked before the script has chosen an interpreter; the links are kept."""
    first = [subject for subject in spec.subjects if subject.name in FIRST_SUBJECTS]
    # In a Slurm job, only the host of the script needs it.
    subjects = [*first, *([] if _runs_in_job(spec) else [software.SCRIPT_SUBJECT])] if spec.subjects else []
    request = (
        spec.request if spec.script is None else replace(spec.request, program=build_script_program(spec.script.words))
    )
    checked = replace(spec, subjects=subjects, request=request)
    return await check_launch(checked, dialer, check_observer)


def _is_blocked(report: CheckReport) -> bool:
    return bool(report.by_subject) and any(each.severity is Severity.BLOCK for each in report.findings)
