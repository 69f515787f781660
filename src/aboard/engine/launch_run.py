"""`aboard launch`: checks the nodes, builds the plan, and conducts the run over the links of the check."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from aboard.config.input_files import find_similar_file
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node_sets import fold_names
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.plan.plan_builder import build_plan
from aboard.core.plan.program import ProgramKind, list_possible_paths
from aboard.core.probes.facts import Facts
from aboard.core.probes.rank_environment import CommandPath, RankSpec
from aboard.core.run.event_kinds import Finished
from aboard.core.run.run_progress import RunProgress, build_run_progress
from aboard.core.run.run_state import Run
from aboard.diagnoses import AboardError, Finding, Severity
from aboard.engine.check.check_cluster import CheckReport, probe_cluster
from aboard.engine.check.check_observer import CheckObserver, NullCheckObserver
from aboard.engine.conductor.conductor import Conductor, RunObserver
from aboard.engine.node_resources import choose_master, collect_node_resources
from aboard.engine.records.plan_file import PlanFile
from aboard.engine.recovery.recover_run import RunRecovery
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.request.typed_words import format_typed_command
from aboard.lazy_dataclass import dataclass
from aboard.record.event_log import read_events
from aboard.record.run_record import Record
from aboard.transport.node_dialer import DialResult, NodeDialer, TransportFor, choose_transport
from aboard.transport.supervisor_messages import OutputChunk

if TYPE_CHECKING:
    from aboard.engine.scripts.node_script import ScriptEnd

_LOG = logging.getLogger(__name__)
# The file that accelerate's launcher names for DeepSpeed: each rank reads it.
ACCELERATE_CONFIG = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
MOST_PATHS = 64
# The id in a plan that is not started.
DRY_RUN = "dry-run"
OnConductor = Callable[[Conductor], None]


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How far a launch got: blocked by the node check, refused because of its payload, or run to its end.

    `continuation` says whether a further Slurm job continues it; `dropped` is what the record had no room for.
    `findings` are the verdict on a run that ended. `script` is how the script ended that called the launcher.
    """

    report: CheckReport | None
    refused: tuple[Finding, ...] = ()
    outcome: Finished | None = None
    findings: tuple[Finding, ...] = ()
    progress: RunProgress | None = None
    continuation: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    script: "ScriptEnd | None" = None

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """The findings of a launch that started nothing."""
        return self.refused or (() if self.report is None else tuple(self.report.findings))

    @property
    def blockers(self) -> tuple[Finding, ...]:
        """Those that refused it."""
        return tuple(finding for finding in self.reasons if finding.severity is Severity.BLOCK)


async def plan_launch(
    spec: LaunchSpec, *, check_observer: CheckObserver, known: Facts | None = None
) -> tuple[Plan, list[Finding]]:
    """The plan of a dry run, from the same node check, and all findings; nothing is started."""
    async with probe_launch(spec, NodeDialer(), check_observer) as (report, _links):
        facts = report.facts if known is None else add_known_facts(report.facts, known)
    plan = _build_plan(spec.request, leave_out_spares(spec, facts), DRY_RUN)
    refused: Sequence[Finding] = ()
    if spec.payload is not None:
        plan, refused = await spec.payload.settle(plan, facts)
    return plan, [*refused, *(report.findings if spec.subjects else ())]


def probe_launch(
    spec: LaunchSpec, dialer: NodeDialer, check_observer: CheckObserver, *, keep: bool = False
) -> AbstractAsyncContextManager[tuple[CheckReport, dict[str, DialResult]]]:
    """The node check of a launch; see `probe_cluster`."""
    ranks = build_rank_spec(spec)
    subjects = spec.subjects or ([] if spec.essential is None else [spec.essential])
    return probe_cluster(
        spec.cluster, subjects, dialer, quick=spec.quick, spec=ranks, check_observer=check_observer, keep=keep
    )


async def check_launch(spec: LaunchSpec, dialer: NodeDialer, check_observer: CheckObserver) -> CheckReport:
    """The node check of a launch, whose links the dialer keeps."""
    async with probe_launch(spec, dialer, check_observer, keep=True) as (report, links):
        dialer.keep(links)
    return report


async def launch(
    spec: LaunchSpec,
    record: Record,
    *,
    check_observer: CheckObserver,
    run_observer: RunObserver,
    on_report: Callable[[CheckReport], None] = lambda _report: None,
    on_conductor: OnConductor = lambda _conductor: None,
    dialer: NodeDialer | None = None,
    transport_for: TransportFor = choose_transport,
    known: Facts | None = None,
    checking: Awaitable[CheckReport] | None = None,
    on_output: Callable[[OutputChunk], None] = lambda _chunk: None,
) -> LaunchResult:
    """Starts nothing if the node check finds a blocker; otherwise conducts every rank to its end.

    `dialer` may already be connecting; `known` is what an earlier check of these nodes has found. `checking` is the
    check itself, if it has begun.
    """
    dialer = dialer or NodeDialer(transport_for)
    report = None
    try:
        check_report = await (checking or check_launch(spec, dialer, check_observer))
        facts = check_report.facts if known is None else add_known_facts(check_report.facts, known)
        if spec.subjects:
            report = check_report
            on_report(report)
            _LOG.info("the node check found %s", ", ".join(each.code for each in report.findings) or "nothing")
            if any(finding.severity is Severity.BLOCK for finding in report.findings):
                return LaunchResult(report=report)
        plan = _build_plan(spec.request, leave_out_spares(spec, facts), record.run.id)
        _LOG.info(
            "%d ranks on %s; rank 0 on %s at %s",
            plan.world,
            fold_names(part.node.name for part in plan.parts),
            plan.master.node,
            plan.master.address,
        )
        if spec.payload is not None:
            plan, findings = await spec.payload.settle(plan, facts)
            _LOG.info("the payload: %s", ", ".join(each.code for each in findings) or "nothing to report")
            if any(finding.severity is Severity.BLOCK for finding in findings):
                return LaunchResult(report=report, refused=tuple(findings))
            await spec.payload.load(plan, dialer)
        conductor = Conductor(
            plan,
            dialer,
            lease=spec.lease,
            record=record,
            run_observer=run_observer,
            fixed_port=spec.request.master_port is not None,
            on_stall=spec.recovery.on_stall,
            recovery=_build_recovery(spec, plan, facts, dialer),
            # A further Slurm job continues the record of the one before.
            earlier=Run.replay(plan.run, read_events(record.run.events)).generation.number,
            copies=None if spec.payload is None else spec.payload.copies,
            plan_file=build_plan_file(spec, record),
            on_output=on_output,
        )
        on_conductor(conductor)
        outcome = await conductor.conduct()
    finally:
        await dialer.close()
    progress = build_run_progress(conductor.plan, conductor.run, time())
    return LaunchResult(report=report, outcome=outcome, findings=conductor.verdict, progress=progress)


def build_plan_file(spec: LaunchSpec, record: Record) -> PlanFile:
    command = format_typed_command(spec.argv)
    return PlanFile(record=record, command=command, cwd=spec.cwd, lease=spec.lease.seconds)


def add_known_facts(facts: Facts, known: Facts) -> Facts:
    """The facts, with those of an earlier check of the same nodes where they have none."""
    return replace(
        facts,
        answers={**known.answers, **facts.answers},
        outcomes={**known.outcomes, **facts.outcomes},
        environments={**known.environments, **facts.environments},
    )


def _build_recovery(spec: LaunchSpec, plan: Plan, facts: Facts, dialer: NodeDialer) -> RunRecovery | None:
    """How the run gets its next generation; None if it never gets one."""
    if spec.recovery.restarts == 0:
        return None
    plans = {tuple(part.node.name for part in plan.parts): plan}

    async def check_nodes(names: Sequence[str]) -> Sequence[Finding]:
        part = replace(spec, cluster=_select_nodes(facts.cluster, names), quick=True)
        report = await check_launch(part, dialer, NullCheckObserver())
        return [finding for finding in report.findings if finding.severity is Severity.BLOCK]

    async def plan_nodes(names: Sequence[str], *, resume: bool) -> Plan:
        key = tuple(names)
        if key not in plans:
            plans[key] = await _plan_part(spec, replace(facts, cluster=_select_nodes(facts.cluster, names)), plan.run)
            if spec.payload is not None:
                await spec.payload.load(plans[key], dialer, resume=resume)
        return spec.payload.resume(plans[key]) if resume and spec.payload is not None else plans[key]

    async def load_node(name: str) -> NodePlan | None:
        if spec.payload is not None:
            await spec.payload.load_spare(facts.cluster.node(name), dialer)
            # What starts there depends on how many ranks there are, hardly on whose place it takes.
            names = [*(part.node.name for part in plan.parts[:-1]), name]
            with suppress(AboardError):
                taken = await _plan_part(spec, replace(facts, cluster=_select_nodes(facts.cluster, names)), plan.run)
                return next((part for part in taken.parts if part.node.name == name), None)
        return None

    return RunRecovery(spec.recovery, check_nodes=check_nodes, plan_nodes=plan_nodes, load_node=load_node)


async def _plan_part(spec: LaunchSpec, facts: Facts, run: str) -> Plan:
    """The plan on these nodes; raises AboardError if they can't run it."""
    plan = _build_plan(spec.request, facts, run)
    if spec.payload is not None:
        plan, findings = await spec.payload.settle(plan, facts)
        blockers = [finding for finding in findings if finding.severity is Severity.BLOCK]
        if blockers:
            raise AboardError(blockers[0].diagnosis, blockers[0].seen)
    return plan


def leave_out_spares(spec: LaunchSpec, facts: Facts) -> Facts:
    return replace(facts, cluster=leave_out(facts.cluster, spec.recovery.spares))


def leave_out(cluster: Cluster, spares: Sequence[str]) -> Cluster:
    """The cluster without the spares, which have no ranks yet."""
    return replace(cluster, nodes=tuple(node for node in cluster if node.name not in spares))


def _select_nodes(cluster: Cluster, names: Sequence[str]) -> Cluster:
    """The cluster of these nodes, in this order."""
    nodes = {node.name: node for node in cluster}
    return replace(cluster, nodes=tuple(nodes[name] for name in names))


def build_rank_spec(spec: LaunchSpec) -> RankSpec:
    """What the nodes must provide; a program that is uploaded with the run is not searched for there."""
    request = spec.request
    if request.code:
        return RankSpec(environment=spec.environment, search_path=request.env.get("PATH"))
    here, home, script = Path(spec.cwd), Path.home(), request.program.target
    is_path = request.program.kind is ProgramKind.SCRIPT or (
        request.program.kind is ProgramKind.PROGRAM and "/" in script
    )
    is_missing = is_path and not os.path.exists(script)  # noqa: PTH110 - as below
    return RankSpec(
        environment=spec.environment,
        program=request.program,
        search_path=request.env.get("PATH"),
        paths=tuple(_list_existing_paths(request)),
        folder=str(here),
        below_home=str(here.relative_to(home)) if here != home and here.is_relative_to(home) else "",
        near=find_similar_file(script) if is_missing else None,
    )


def _list_existing_paths(request: LaunchRequest) -> Iterator[CommandPath]:
    """The paths of the command that this machine has."""
    named = dict(list_possible_paths(request.program))
    if config := request.env.get(ACCELERATE_CONFIG):
        named[config] = True
    existing = (
        CommandPath(path=path, source=os.path.normpath(Path(path).absolute()), needed=needed)
        for path, needed in named.items()
        if os.path.exists(path)  # noqa: PTH110 - a word that can't be a path is no error
    )
    return islice(existing, MOST_PATHS)


def _build_plan(request: LaunchRequest, facts: Facts, run: str) -> Plan:
    cluster = facts.cluster
    return build_plan(
        cluster, request, collect_node_resources(facts), run=run, master=choose_master(cluster, request, facts)
    )
