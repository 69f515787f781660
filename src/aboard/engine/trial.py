"""`aboard launch --trial`: runs the user's command for seconds on each node alone, on pairs, and on all nodes."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from time import monotonic, time

from aboard.core.plan.plan_builder import build_plan
from aboard.core.probes.facts import Facts
from aboard.core.run.event_kinds import Finished
from aboard.core.run.events import Event
from aboard.core.run.recovery.node_trial import (
    TrialResult,
    build_stages,
    build_stuck_finding,
    build_trial_finding,
    has_succeeded,
)
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.conductor.control_socket import build_live_progress
from aboard.engine.launch_run import probe_launch
from aboard.engine.node_resources import choose_master, collect_node_resources
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer

OnTried = Callable[[TrialResult], None]


async def run_trial(
    spec: LaunchSpec, run: RunDirectory, on_tried: OnTried
) -> tuple[CheckReport, list[TrialResult] | None]:
    """The report of the preflight check, and the result of each group; None if the check found a blocker."""
    watcher = NullCheckObserver()
    dialer = NodeDialer()
    claim = run.claim()
    try:
        async with probe_launch(spec, dialer, watcher, keep=True) as (report, links):
            if any(finding.severity is Severity.BLOCK for finding in report.findings):
                return report, None
            dialer.keep(links)
        return report, await _try_groups(spec, report.facts, dialer, run, on_tried)
    finally:
        await dialer.close()
        claim.release()


async def _try_groups(
    spec: LaunchSpec, facts: Facts, dialer: NodeDialer, run: RunDirectory, on_tried: OnTried
) -> list[TrialResult]:
    """Stops after the first stage in which a group fails: larger groups would fail for the same reason."""
    results: list[TrialResult] = []
    numbers = count(1)
    for stage in build_stages([node.name for node in facts.cluster if node.slots != 0]):
        trials = [_try_group(next(numbers), group, spec, facts, dialer, run) for group in stage]
        stage_results = await asyncio.gather(*trials)
        for each in stage_results:
            on_tried(each)
        results += stage_results
        if not all(each.passed for each in stage_results):
            break
    _write_trial_end(run, build_trial_finding(results))
    return results


def _write_trial_end(run: RunDirectory, finding: Finding | None) -> None:
    """Writes the end that the list of runs shows; it does not read the groups' own records."""
    with closing(Record.open(run, ranks=1)) as record:
        why = "every node can run the command" if finding is None else finding.seen
        body = Finished(why=Untrusted(why), code=0 if finding is None else 1)
        record.event(Event(node="", at=time(), body=body))
        record.write_findings([] if finding is None else [finding])


async def _try_group(
    number: int, group: tuple[str, ...], spec: LaunchSpec, facts: Facts, dialer: NodeDialer, run: RunDirectory
) -> TrialResult:
    part = replace(facts.cluster, nodes=tuple(node for node in facts.cluster if node.name in group))
    own = replace(facts, cluster=part)
    # Any free port: groups run in parallel, and a trial needs no fixed one.
    group_request = replace(spec.request, nodes=None, master_port=None)
    where = replace(choose_master(part, group_request, own), port=0)
    plan = build_plan(part, group_request, collect_node_resources(own), run=f"{run.id}.t{number}", master=where)
    directory = RunDirectory(run.path / f"trial-{number}")
    directory.make()
    began = monotonic()
    observer = _TrialObserver()
    with closing(Record.open(directory, ranks=plan.world)) as record:
        conductor = Conductor(plan, dialer, lease=spec.lease, record=record, run_observer=observer)
        outcome = await conductor.conduct()
    findings = conductor.verdict if observer.found is None else (observer.found,)
    passed = observer.answer is True or (observer.answer is None and outcome.code == 0)
    summary = findings[0].seen if findings else "it ran" if passed else outcome.why.visible()
    return TrialResult(
        group=group,
        passed=passed,
        seconds=monotonic() - began,
        outcome=summary,
        findings=() if passed else findings,
    )


class _TrialObserver:
    """Stops a group once it has succeeded or is stuck."""

    def __init__(self) -> None:
        self.answer: bool | None = None
        self.found: Finding | None = None
        self._conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def event(self, event: Event) -> None:
        self.tick(time())

    def tick(self, now: float) -> None:
        conductor = self._conductor
        if conductor is None or self.answer is not None or conductor.run.generation.first_death is not None:
            return
        self.answer = has_succeeded(conductor.run, conductor.plan.world, now)
        if self.answer is False:
            self.found = build_stuck_finding(build_live_progress(conductor))
        if self.answer is not None:
            conductor.stop("the trial has seen enough")
