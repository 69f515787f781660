"""The runs that a script starts, one after the other: each from the launchers that it has called on its nodes."""

import asyncio
from asyncio import Task
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import SystemRandom

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.launchers.capture_failures import (
    build_missing_launcher_error,
    build_no_launcher_error,
    build_parallel_error,
)
from aboard.core.launchers.captured_launch import Capture
from aboard.core.launchers.captured_nodes import apply_captures, compare_captures, find_spare_problem
from aboard.core.launchers.command_kind import build_script_env, uses_front_end
from aboard.core.launchers.launcher_command import LauncherCommand
from aboard.core.launchers.parse_command import split_assignments
from aboard.core.launchers.slurm.captured_steps import JobReader
from aboard.core.launchers.slurm.srun import Step
from aboard.core.plan.plan import Start
from aboard.core.plan.plan_builder import count_ranks
from aboard.core.plan.rank_variables import RankLayout, build_task_env
from aboard.core.probes.facts import Facts
from aboard.core.secrets.secret_names import list_secret_names
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import captured_scripts as diagnoses
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.check.check_observer import CheckObserver
from aboard.engine.launch_run import LaunchResult, check_launch, leave_out_spares
from aboard.engine.node_resources import choose_master, collect_node_resources
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.scripts.node_script import SRUN, ScriptEnd, ScriptObserver
from aboard.engine.scripts.script_sessions import CHILD, ScriptSessions
from aboard.engine.scripts.stage import Stage, refuse_script, require_capture
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.supervisor_messages import OutputChunk

# What is checked before the script; the others need the interpreter that it chooses.
FIRST_SUBJECTS = frozenset({"reach", "slurm", "host", "network", "fabric", "gpu", "storage"})
# A script may pass this port to its launcher; then it is no wish of the user's.
PORTS = range(20_000, 30_000)
# How long the sruns of a loop may take to be all there.
LOOP_SECONDS = 60.0
Read = Callable[[Capture], LauncherCommand]


class ScriptStages:
    """The runs that a script starts, one after the other.

    The next launch is checked early if there is an observer of checks.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        facts: Facts,
        dialer: NodeDialer,
        run: str,
        script_observer: ScriptObserver,
        record: Record | None = None,
        check_observer: CheckObserver | None = None,
    ) -> None:
        if spec.script is None:
            raise ValueError("the launch has no script")
        cluster = leave_out_spares(spec, facts).cluster
        self._spec = spec
        self._script = spec.script
        self._job = spec.script.job_reader
        self._before, self._words = split_assignments(spec.script.script.words)
        self._cluster = cluster
        self._first = cluster.nodes[0]
        self._dialer = dialer
        self._run = run
        self._record = record
        self._script_observer = script_observer
        self._check_observer = check_observer
        # The stage that the first node's launcher asks for, and its check, beside the other nodes' scripts.
        self._early: tuple[LaunchSpec, Task[CheckReport]] | None = None
        self._dropping: Task[None] | None = None
        # In a Slurm job, the script runs beside us, where another agent may serve the node.
        self._own_dialer = NodeDialer() if self._job is not None else dialer
        self._sessions = self._open_sessions(self._own_dialer, 0)
        self._peers = self._open_sessions(dialer, 1) if self._job is not None else self._sessions
        self._tasks: ScriptSessions | None = None
        self._task_scripts = len(cluster) + 1
        self._resources = collect_node_resources(replace(facts, cluster=cluster))
        master = choose_master(cluster, spec.request, replace(facts, cluster=cluster))
        self._master = replace(master, port=SystemRandom().choice(PORTS))
        # That of the first run that failed, or of the last one.
        self._result: LaunchResult | None = None
        # What the launcher returns; None if the script must not go on.
        self._code: int | None = None

    def _open_sessions(self, dialer: NodeDialer, first: int) -> ScriptSessions:
        return ScriptSessions(
            self._run, dialer, self._spec.lease, self._record, self._script_observer, self._job, first
        )

    @property
    def result(self) -> LaunchResult:
        """How the launch ended, once `follow` has."""
        return self._result or LaunchResult(report=None)

    async def follow(self) -> AsyncGenerator[Stage, None]:
        """The launches that the script asks for, until it ends; each must be finished before the next one."""
        await self._start_first()
        while not isinstance(outcome := await self._sessions.wait(self._first.name), ScriptEnd):
            first = require_capture(self._first.name, outcome)
            scripts = list(dict.fromkeys((self._sessions, self._peers)))
            if self._job is not None:
                first = await self._merge_loop(self._job, first)
            if self._job is not None and (step := self._job.find_task_step(first)) is not None:
                async for stage in self._follow_tasks(self._job, step, first):
                    yield stage
            else:
                yield await self._build_stage(self._resolve(await self._collect(first)), first, scripts)
            if self._code is None:
                return
            for each in scripts:
                await each.release(self._code)
        self._result = await self._conclude(outcome)

    async def finish(self, stage: Stage, ended: LaunchResult) -> None:
        """Takes the result of a stage; decides what its launcher returns, and whether the script goes on."""
        for each in stage.scripts:
            if (second := await each.get_second()) is not None:
                raise build_parallel_error(stage.first, second)
        before = None if self._result is None else self._result.outcome
        if self._result is None or (before is not None and before.code == 0):
            self._result = ended
        self._code = EXIT_INTERRUPTED if ended.outcome is None else ended.outcome.code
        if self._code == EXIT_INTERRUPTED and not any(each.withdrawn.is_set() for each in stage.scripts):
            self._result = ended
            self._code = None

    def print_output(self, chunk: OutputChunk) -> None:
        """Prints what a rank wrote where the script sends its launcher's output; an srun also prints its tasks'."""
        places = [each for each in (self._tasks, self._peers) if each is not None and each.has_launcher(chunk.node)]
        for place in (*places[:1], self._sessions):
            if place.print_output(chunk) or place is not self._tasks:
                return

    async def end(self, within: float | None = None) -> None:
        """Ends all scripts, within this time if it is given."""
        scripts = {self._sessions, self._peers, *([] if self._tasks is None else [self._tasks])}
        await asyncio.gather(*(each.end(within) for each in scripts), *filter(None, [self._dropping]))
        await self._take_check(None)
        if self._own_dialer is not self._dialer:
            await self._own_dialer.close()

    async def _build_stage(self, spec: LaunchSpec, first: Capture, scripts: Sequence[ScriptSessions]) -> Stage:
        return Stage(spec=spec, first=first, scripts=scripts, checking=await self._take_check(spec))

    async def _merge_loop(self, job: JobReader, first: Capture) -> Capture:
        """One srun on all nodes in place of those that a loop starts, each on one node."""
        captures, count = [first], job.count_loop(first)
        try:
            async with asyncio.timeout(LOOP_SECONDS):
                while len(captures) < count and not self._sessions.parallel.is_set():
                    outcome = await self._sessions.wait(self._first.name)
                    if isinstance(outcome, ScriptEnd):
                        break
                    captures.append(require_capture(self._first.name, outcome))
        except TimeoutError:
            pass
        if (second := await self._sessions.get_second()) is not None:
            raise build_parallel_error(first, second)
        if len(captures) != count:
            # Of too few, the first is refused: it waits for more nodes than it has.
            return first
        merged, nodes = job.merge_loop(captures)
        names = nodes or [node.name for node in self._cluster]
        self._sessions.assign_loop({each.number: node for each, node in zip(captures, names, strict=False)})
        return merged

    async def _follow_tasks(self, job: JobReader, step: Step, outer: Capture) -> AsyncGenerator[Stage, None]:
        """Runs a task's script on each node of a step; each launcher that all of them call is a stage."""
        names = step.select_names([node.name for node in self._cluster])
        nodes = [node for node in self._cluster if node.name in names]
        cluster = replace(self._cluster, nodes=tuple(nodes))
        tasks = self._tasks = self._open_sessions(self._dialer, self._task_scripts)
        self._task_scripts += len(nodes)
        tasks.on_output = self._sessions.print_output
        await asyncio.gather(*(self._start_task(tasks, job, step, outer, cluster, node) for node in nodes))
        while True:
            first = await tasks.wait(nodes[0].name)
            if isinstance(first, ScriptEnd):
                ends = [await tasks.wait(node.name) for node in nodes]
                for node, end in zip(nodes, ends, strict=True):
                    if not isinstance(end, ScriptEnd):
                        raise build_missing_launcher_error(nodes[0].name, first.reason, require_capture(node.name, end))
                await tasks.end()
                self._tasks = None
                self._code = max(end.exit_code for end in ends if isinstance(end, ScriptEnd))
                return
            captures = {nodes[0].name: self._add_outer(outer, require_capture(nodes[0].name, first))}
            if job.read_task(captures[nodes[0].name]).per_node:
                others = await self._collect_others(tasks, nodes[1:], captures[nodes[0].name])
                captures |= {node: self._add_outer(outer, each) for node, each in others.items()}
            spec = self._resolve(captures, cluster, job.read_task)
            yield await self._build_stage(spec, captures[nodes[0].name], [self._sessions, tasks])
            if self._code is None:
                return
            await tasks.release(self._code)

    def _add_outer(self, outer: Capture, inner: Capture) -> Capture:
        """The launcher of a task with what the script had set before its srun."""
        kept = {name: value for name, value in outer.env.items() if name not in inner.removed}
        removed = {*outer.removed, *inner.removed} - inner.env.keys()
        limits = {**outer.limits, **inner.limits}
        return replace(inner, env={**kept, **inner.env}, removed=tuple(sorted(removed)), limits=limits)

    async def _start_task(
        self, tasks: ScriptSessions, job: JobReader, step: Step, outer: Capture, cluster: Cluster, node: Node
    ) -> None:
        group = [each.name for each in cluster].index(node.name)
        layout = RankLayout(rank=group, world=len(cluster), local=0, local_world=1, group=group, groups=len(cluster))
        start = {name: value for name, value in self._script.script.env.items() if name.startswith("SLURM_")}
        passed = {name: value for name, value in job.list_variables(outer).items() if not name.startswith("ABOARD_")}
        own = self._build_own_env(node, group, len(cluster)) if uses_front_end(step.command) else {}
        env = {**passed, **node.env, **self._spec.request.env, **own, **start, **outer.env, **step.env}
        env |= build_task_env(layout)
        before, words = split_assignments(step.command)
        argv = (*_unset(outer.removed), *words)
        where = step.workdir or outer.cwd
        await self._start_script(tasks, node, argv, {**env, **before}, where)

    async def _start_first(self) -> None:
        start = self._script.script
        if self._job is None:
            for node in self._cluster:
                self._sessions.prepare(node)
            await self._start(self._first)
            return
        env = {**self._spec.request.env, **start.env, **self._before}
        if not start.is_batch:
            env = {**self._build_own_env(self._first, 0, len(self._cluster)), **env}
        local = Node(name=self._first.name, transport=TransportKind.LOCAL)
        where = str(Path(self._spec.cwd) / (start.cwd or ""))
        await self._start_script(self._sessions, local, (*_unset(start.removed), *self._words), env, where)

    async def _start(self, node: Node) -> None:
        rank = [each.name for each in self._cluster].index(node.name)
        own = self._build_own_env(node, rank, len(self._cluster))
        env = {
            **({} if node.interpreter is None else node.interpreter.env),
            **node.env,
            **own,
            **self._spec.request.env,
            **self._before,
            # Whoever types it has written it for the first node.
            "NODE_RANK": own["NODE_RANK"],
        }
        sessions = self._sessions if node.name == self._first.name else self._peers
        await self._start_script(sessions, node, prepend_setup(node, tuple(self._words)), env, node.workdir)

    async def _start_script(
        self, sessions: ScriptSessions, node: Node, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None
    ) -> None:
        secrets = list_secret_names(env)
        start = Start(child=CHILD, argv=argv, env=env, secrets=secrets, cwd=cwd, capture=True)
        await sessions.start(node, start)

    def _build_own_env(self, node: Node, rank: int, nodes: int) -> dict[str, str]:
        return build_script_env(
            node_rank=rank,
            nodes=nodes,
            ranks=count_ranks(node, self._spec.request, self._resources[node.name]),
            master_address=self._master.address,
            master_port=self._master.port,
            front_end=self._script.uses_front_end,
        )

    def _read(self, capture: Capture) -> LauncherCommand:
        """Its command, as if the script itself had set the variables that were typed before it."""
        before = {name: value for name, value in self._before.items() if name not in capture.removed}
        return self._script.read_capture(replace(capture, env={**before, **capture.env}))

    async def _collect(self, first: Capture) -> Mapping[str, Capture]:
        """What the launcher was called with on each node that has to call it."""
        captures = {first.node: first}
        if len(self._cluster) == 1 or not self._read(first).per_node:
            self._dropping = asyncio.create_task(self._peers.drop_prepared())
            return captures
        self._check_early(captures)
        others = [node for node in self._cluster if node.name != first.node]
        await asyncio.gather(*(self._start(node) for node in others if node.name not in self._peers.nodes))
        return captures | await self._collect_others(self._peers, others, first)

    async def _collect_others(
        self, scripts: ScriptSessions, nodes: Sequence[Node], first: Capture
    ) -> dict[str, Capture]:
        """What these nodes' scripts call, as that of the first node did."""
        captures = {}
        for node in nodes:
            outcome = await scripts.wait(node.name)
            if isinstance(outcome, ScriptEnd):
                raise build_missing_launcher_error(node.name, outcome.reason, first)
            captures[node.name] = require_capture(node.name, outcome)
        return captures

    def _check_early(self, captures: Mapping[str, Capture]) -> None:
        """Begins to check what the first node's launcher asks for: that of the others will hardly differ."""
        stage = self._read_stage(captures)
        if self._check_observer is not None and stage.subjects:
            checking = check_launch(stage, self._dialer, self._check_observer)
            self._early = stage, asyncio.create_task(checking)

    async def _take_check(self, stage: LaunchSpec | None) -> Task[CheckReport] | None:
        """The check that has begun, if it is that of this stage; another one is over."""
        if self._early is None:
            return None
        (expected, checking), self._early = self._early, None
        if stage is not None and (stage.cluster, stage.request) == (expected.cluster, expected.request):
            return checking
        checking.cancel()
        await asyncio.wait([checking])
        return None

    def _resolve(
        self, captures: Mapping[str, Capture], cluster: Cluster | None = None, read: Read | None = None
    ) -> LaunchSpec:
        """The launch that the captured commands ask for, which is shown."""
        stage = self._read_stage(captures, cluster, read)
        first = captures[(cluster or self._cluster).nodes[0].name]
        where = f" ({escape_text(first.script)} line {first.line})" if first.line else ""
        names = [node.name for node in stage.cluster] if first.launcher == SRUN else captures
        told = f"captured {escape_text(first.launcher)} on {fold_names(names)}{where}"
        self._sessions.say_captured(told, stage.notes)
        return stage

    def _read_stage(
        self, captures: Mapping[str, Capture], cluster: Cluster | None = None, read: Read | None = None
    ) -> LaunchSpec:
        """That launch, on nodes with what their scripts have set; `cluster` and `read` are those of a step's tasks."""
        include = "" if cluster is None else "@".join(node.name for node in cluster)
        cluster = cluster or self._cluster
        commands = {node: (read or self._read)(capture) for node, capture in captures.items()}
        hosts = {node: capture.host for node, capture in captures.items()}
        if (problem := compare_captures(commands, hosts)) is not None:
            raise InputError(diagnoses.DIFFERS, [problem])
        first = captures[cluster.nodes[0].name]
        request, nodes = apply_captures(cluster.nodes, commands)
        if request.master_port == self._master.port:
            request = replace(request, master_port=None)
        if request.master_address == self._master.address:
            request = replace(request, master_address=None)
        command = replace(commands[first.node], request=request)
        stage = self._script.read_captured(replace(command, include=include or command.include), first)
        spares = [node.name for node in stage.cluster if node.name in stage.recovery.spares]
        if (problem := find_spare_problem(commands, spares)) is not None:
            raise InputError(diagnoses.DIFFERS, [problem])
        chosen = {node.name: node for node in nodes}
        rest = [subject for subject in stage.subjects if subject.name not in FIRST_SUBJECTS]
        nodes = tuple(_keep_script(node, chosen.get(node.name, nodes[0])) for node in stage.cluster)
        return replace(stage, cluster=replace(stage.cluster, nodes=nodes), subjects=rest, script=None)

    async def _conclude(self, end: ScriptEnd) -> LaunchResult:
        """The result of a script that has ended; scripts on other nodes must end as well."""
        for name in self._peers.nodes:
            outcome = end if name == self._first.name else await self._peers.wait(name)
            if not isinstance(outcome, ScriptEnd):
                raise build_missing_launcher_error(self._first.name, end.reason, require_capture(name, outcome))
        typed_launcher = self._script.is_forced or self._script.uses_front_end
        if self._result is None and end.code == 0 and not typed_launcher:
            return LaunchResult(report=None, script=end)
        if self._result is None:
            error = build_no_launcher_error(
                self._first.name, self._script.script.words, end.reason, self._script.launch_words
            )
            return refuse_script(error, end)
        return replace(self._result, script=end)


def _unset(names: Sequence[str]) -> tuple[str, ...]:
    """The words before a command that take variables from it."""
    return ("env", *(word for name in names for word in ("-u", name))) if names else ()


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
