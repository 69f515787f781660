"""`aboard launch -- bash run.sh`: runs the script, and conducts a run in place of each launcher that it calls."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any

from aboard.checks.software import subject as software
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.launchers.capture_failures import (
    build_escape_error,
    build_missing_launcher_error,
    build_no_launcher_error,
    build_parallel_error,
)
from aboard.core.launchers.captured_launch import Capture
from aboard.core.launchers.captured_nodes import apply_captures, compare_captures
from aboard.core.launchers.command_kind import build_script_env, find_script
from aboard.core.launchers.launcher_command import LauncherCommand
from aboard.core.launchers.parse_command import split_assignments
from aboard.core.plan.plan import Start
from aboard.core.plan.plan_builder import count_ranks
from aboard.core.probes.facts import Facts
from aboard.core.secrets.secret_names import list_secret_names
from aboard.diagnoses import InputError, Severity
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import captured_scripts as diagnoses
from aboard.flows.check.check_cluster import CheckReport, build_dialer
from aboard.flows.check.check_observer import CheckObserver
from aboard.flows.launch.conductor import Conductor
from aboard.flows.launch.launch_run import (
    LaunchResult,
    LaunchSpec,
    launch,
    leave_out_spares,
    probe_launch,
)
from aboard.flows.launch.node_resources import choose_master, collect_node_resources
from aboard.flows.launch.script_sessions import (
    CHILD,
    EscapedLauncher,
    ScriptEnd,
    ScriptObserver,
    ScriptSessions,
)
from aboard.record.run_record import Record
from aboard.record.runs import make_run_id
from aboard.transport.node_dialer import NodeDialer

# What is checked before the script; the others need the interpreter that it chooses.
FIRST_SUBJECTS = frozenset({"reach", "slurm", "host", "network", "fabric", "gpu", "storage"})
# A script may pass this port to its launcher; then it is no wish of the user's.
PORTS = range(20_000, 30_000)


async def launch_script(
    spec: LaunchSpec,
    record: Record,
    *,
    script_observer: ScriptObserver,
    check_observer: CheckObserver,
    on_conductor: Callable[[Conductor | None], None],
    dialer: NodeDialer | None = None,
    on_report: Callable[[CheckReport], None] = lambda _report: None,
    **watching: Any,
) -> LaunchResult:
    """Runs the script on rank 0's node, and on all others once it has called a launcher that each node must call.

    The result is that of the first run that failed, or of the last one. `on_conductor` gets None when a run is over.
    """
    dialer = dialer or build_dialer(check_observer)
    report = await _probe_first(spec, dialer, check_observer)
    if report.by_subject:
        on_report(report)
    if _is_blocked(report):
        await dialer.close()
        return LaunchResult(report=report)
    sessions = ScriptSessions(record.run.id, dialer, spec.lease, record, script_observer)

    async def conduct(stage: LaunchSpec) -> LaunchResult:
        conductors: list[Conductor] = []

        def began(conductor: Conductor) -> None:
            conductors.append(conductor)
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
                **watching,
            )
        )
        whys = {sessions.parallel: "the script called a second launcher", sessions.withdrawn: "its launcher was ended"}
        waits = {asyncio.create_task(event.wait()): why for event, why in whys.items()}
        try:
            done, _ = await asyncio.wait([running, *waits], return_when=asyncio.FIRST_COMPLETED)
            for why in (why for task, why in waits.items() if task in done):
                if not conductors:
                    return LaunchResult(report=None)
                conductors[0].stop(why)
            return await running
        finally:
            for task in (running, *waits):
                task.cancel()
            await asyncio.wait([running, *waits])
            on_conductor(None)

    try:
        return await _Stages(spec, report.facts, sessions).run(conduct)
    finally:
        await sessions.end()
        await dialer.close()


async def capture_launch(
    spec: LaunchSpec, script_observer: ScriptObserver, check_observer: CheckObserver
) -> tuple[LaunchSpec | LaunchResult, Facts]:
    """The launch that the script's first launcher was called for, or why there is none; the script is ended there."""
    dialer = build_dialer(check_observer)
    report = await _probe_first(spec, dialer, check_observer)
    if _is_blocked(report):
        await dialer.close()
        return LaunchResult(report=report), report.facts
    sessions = ScriptSessions(make_run_id(datetime.now(UTC), SystemRandom()), dialer, spec.lease, None, script_observer)
    stages: list[LaunchSpec] = []

    async def note(stage: LaunchSpec) -> LaunchResult:
        stages.append(stage)
        return LaunchResult(report=None)

    try:
        result = await _Stages(spec, report.facts, sessions).run(note)
    finally:
        await sessions.end()
        await dialer.close()
    return stages[0] if stages else result, report.facts


async def _probe_first(spec: LaunchSpec, dialer: NodeDialer, check_observer: CheckObserver) -> CheckReport:
    """What can be checked before the script has chosen an interpreter; the links are kept."""
    first = [subject for subject in spec.subjects if subject.name in FIRST_SUBJECTS]
    subjects = [*first, software.SCRIPT_SUBJECT] if spec.subjects else []
    request = spec.request if spec.script is None else replace(spec.request, program=find_script(spec.script.words))
    checked = replace(spec, subjects=subjects, request=request)
    async with probe_launch(checked, dialer, check_observer, keep=True) as (report, links):
        dialer.keep(links)
    return report


def _is_blocked(report: CheckReport) -> bool:
    return bool(report.by_subject) and any(each.severity is Severity.BLOCK for each in report.findings)


class _Stages:
    """The runs that a script starts, one after the other."""

    def __init__(self, spec: LaunchSpec, facts: Facts, sessions: ScriptSessions) -> None:
        if spec.script is None:
            raise ValueError("the launch has no script")
        cluster = leave_out_spares(spec, facts).cluster
        self._spec = spec
        self._script = spec.script
        self._before, self._words = split_assignments(spec.script.words)
        self._cluster = cluster
        self._first = cluster.nodes[0]
        self._sessions = sessions
        self._resources = collect_node_resources(replace(facts, cluster=cluster))
        master = choose_master(cluster, spec.request, replace(facts, cluster=cluster))
        self._master = replace(master, port=SystemRandom().choice(PORTS))

    async def run(self, conduct: Callable[[LaunchSpec], Awaitable[LaunchResult]]) -> LaunchResult:
        """Conducts a run for each launcher that the script calls, until it ends."""
        result: LaunchResult | None = None
        try:
            await self._start(self._first)
            while True:
                outcome = await self._sessions.wait(self._first.name)
                if isinstance(outcome, ScriptEnd):
                    return await self._finish(outcome, result)
                first = self._require_capture(self._first.name, outcome)
                ended = await conduct(self._resolve(await self._collect(first)))
                if (second := await self._sessions.get_second()) is not None:
                    raise build_parallel_error(first, second)
                if result is None or _get_code(result) == 0:
                    result = ended
                code = EXIT_INTERRUPTED if ended.outcome is None else ended.outcome.code
                if code == EXIT_INTERRUPTED and not self._sessions.withdrawn.is_set():
                    return ended
                await self._sessions.release(code)
        except InputError as error:
            return _refuse(error)

    async def _start(self, node: Node) -> None:
        rank = [each.name for each in self._cluster].index(node.name)
        own = build_script_env(
            node_rank=rank,
            nodes=len(self._cluster),
            ranks=count_ranks(node, self._spec.request, self._resources[node.name]),
            master_address=self._master.address,
            master_port=self._master.port,
            front_end=self._script.front_end,
        )
        env = {
            **({} if node.interpreter is None else node.interpreter.env),
            **node.env,
            **own,
            **self._spec.request.env,
            **self._before,
            # Whoever types it has written it for the first node.
            "NODE_RANK": own["NODE_RANK"],
        }
        argv = prepend_setup(node, tuple(self._words))
        await self._sessions.start(
            node, Start(child=CHILD, argv=argv, env=env, secrets=list_secret_names(env), cwd=node.workdir, capture=True)
        )

    def _read(self, capture: Capture) -> LauncherCommand:
        """Its command, as if the script itself had set the variables that were typed before it."""
        before = {name: value for name, value in self._before.items() if name not in capture.removed}
        return self._script.read(replace(capture, env={**before, **capture.env}))

    async def _collect(self, first: Capture) -> Mapping[str, Capture]:
        """What the launcher was called with on each node that has to call it."""
        captures = {first.node: first}
        if len(self._cluster) == 1 or not self._read(first).per_node:
            return captures
        others = [node for node in self._cluster if node.name != first.node]
        await asyncio.gather(*(self._start(node) for node in others if node.name not in self._sessions.nodes))
        for node in others:
            outcome = await self._sessions.wait(node.name)
            if isinstance(outcome, ScriptEnd):
                raise build_missing_launcher_error(node.name, outcome.reason, first)
            captures[node.name] = self._require_capture(node.name, outcome)
        return captures

    def _require_capture(self, node: str, outcome: Capture | EscapedLauncher) -> Capture:
        if isinstance(outcome, EscapedLauncher):
            raise build_escape_error(node, outcome.command, outcome.why)
        return outcome

    def _resolve(self, captures: Mapping[str, Capture]) -> LaunchSpec:
        """The launch that the captured commands ask for, on nodes with what their scripts have set."""
        commands = {node: self._read(capture) for node, capture in captures.items()}
        hosts = {node: capture.host for node, capture in captures.items()}
        if (problem := compare_captures(commands, hosts)) is not None:
            raise InputError(diagnoses.DIFFERS, [problem])
        first = captures[self._first.name]
        request, nodes = apply_captures(self._cluster.nodes, commands)
        if request.master_port == self._master.port:
            request = replace(request, master_port=None)
        if request.master_address == self._master.address:
            request = replace(request, master_address=None)
        stage = self._script.resolve(replace(commands[first.node], request=request), first)
        where = f" ({escape_text(first.script)} line {first.line})" if first.line else ""
        told = f"captured {escape_text(first.launcher)} on {fold_names(captures)}{where}"
        self._sessions.say_captured(told, stage.notes)
        chosen = {node.name: node for node in nodes}
        rest = [subject for subject in stage.subjects if subject.name not in FIRST_SUBJECTS]
        nodes = tuple(_keep_script(node, chosen.get(node.name, nodes[0])) for node in stage.cluster)
        return replace(stage, cluster=replace(stage.cluster, nodes=nodes), subjects=rest, script=None)

    async def _finish(self, end: ScriptEnd, result: LaunchResult | None) -> LaunchResult:
        """The result of a script that has ended; scripts on other nodes must end as well."""
        for name in self._sessions.nodes:
            outcome = end if name == self._first.name else await self._sessions.wait(name)
            if not isinstance(outcome, ScriptEnd):
                raise build_missing_launcher_error(self._first.name, end.reason, self._require_capture(name, outcome))
        if result is None:
            error = build_no_launcher_error(self._first.name, self._script.words, end.reason, self._script.launch)
            return _refuse(error, end)
        return replace(result, script=end)


def _keep_script(node: Node, chosen: Node) -> Node:
    """The node of the stage's cluster with what its script has chosen."""
    return replace(
        node,
        workdir=chosen.workdir,
        interpreter=chosen.interpreter,
        env={**node.env, **chosen.env},
        setup=chosen.setup,
        picked=node.picked if chosen.picked is None else chosen.picked,
    )


def _refuse(error: InputError, end: ScriptEnd | None = None) -> LaunchResult:
    """The result of a script whose launcher can't become a run."""
    findings = [
        error.diagnosis.finding(nodes=(), seen=f"{each.where}: {each.seen}", fix=each.fix, severity=Severity.BLOCK)
        for each in error.problems
    ]
    return LaunchResult(report=None, refused=tuple(findings), script=end)


def _get_code(result: LaunchResult) -> int | None:
    return None if result.outcome is None else result.outcome.code
