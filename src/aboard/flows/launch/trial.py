"""`aboard launch --trial`: runs the user's command for seconds on each node alone, on pairs, and on all nodes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, time

from aboard.core.cluster.cluster import Cluster
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan_builder import build_plan
from aboard.core.probes.facts import Facts
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.node_trial import (
    TrialResult,
    build_stages,
    build_stuck_finding,
    build_trial_finding,
    has_succeeded,
)
from aboard.diagnoses import Finding
from aboard.flows.launch.conductor import Conductor, RunOutcome
from aboard.flows.launch.control_socket import build_live_roster
from aboard.flows.launch.node_resources import choose_master, collect_node_resources
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer

OnTried = Callable[[TrialResult], None]


async def run_trial(
    cluster: Cluster,
    request: LaunchRequest,
    facts: Facts,
    dialer: NodeDialer,
    run: RunDirectory,
    *,
    lease: Lease,
    on_tried: OnTried = lambda _tried: None,
) -> list[TrialResult]:
    """Stops after the first stage in which a group fails: larger groups would fail for the same reason."""
    results: list[TrialResult] = []
    number = 0
    for stage in build_stages([node.name for node in cluster if node.slots != 0]):
        trials = []
        for group in stage:
            number += 1
            trials.append(_try_group(number, group, cluster, request, facts, dialer, run, lease))
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
    record = Record.open(run, ranks=1)
    try:
        why = "every node can run the command" if finding is None else finding.seen
        data = {"why": why, "code": 0 if finding is None else 1}
        record.event(Event(node="", seq=0, at=time(), kind="finished", data=data))
        record.write_findings([] if finding is None else [finding])
    finally:
        record.close()


async def _try_group(
    number: int,
    group: tuple[str, ...],
    cluster: Cluster,
    request: LaunchRequest,
    facts: Facts,
    dialer: NodeDialer,
    run: RunDirectory,
    lease: Lease,
) -> TrialResult:
    part = replace(cluster, nodes=tuple(node for node in cluster if node.name in group))
    own = replace(facts, cluster=part)
    # Any free port: groups run in parallel, and a trial needs no fixed one.
    group_request = replace(request, nodes=None, master_port=None)
    where = replace(choose_master(part, group_request, own), port=0)
    plan = build_plan(part, group_request, collect_node_resources(own), run=f"{run.id}.t{number}", master=where)
    directory = RunDirectory(run.path / f"trial-{number}")
    directory.make()
    record = Record.open(directory, ranks=plan.world)
    began = monotonic()
    observer = _TrialObserver()
    conductor = Conductor(plan, dialer, lease=lease, record=record, viewer=observer)
    try:
        outcome = await conductor.conduct()
    finally:
        record.close()
    return _build_result(group, outcome, observer, monotonic() - began)


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
            self.found = build_stuck_finding(build_live_roster(conductor))
        if self.answer is not None:
            conductor.stop("the trial has seen enough")


def _build_result(group: tuple[str, ...], outcome: RunOutcome, observer: _TrialObserver, seconds: float) -> TrialResult:
    findings = (observer.found,) if observer.found is not None else outcome.findings
    passed = observer.answer is True or (observer.answer is None and outcome.code == 0)
    summary = findings[0].seen if findings else "it ran" if passed else outcome.why
    return TrialResult(
        group=group, passed=passed, seconds=seconds, outcome=summary, findings=() if passed else findings
    )
