"""Runs a script on nodes, each under a supervisor of its own, until it calls a launcher, and continues it after that.

The supervisor outlives those of the ranks: the launcher that the script called waits for the run's exit code.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING

from aboard.core.cluster.node import Node
from aboard.core.launchers.captured_launch import RUN_ITSELF, Capture, parse_capture
from aboard.core.plan.plan import Start
from aboard.core.run.lease import Lease
from aboard.diagnoses import AboardError, TransportError
from aboard.engine.scripts.launcher_output import LAST_SECONDS
from aboard.engine.scripts.node_script import NodeScript, Outcome, ScriptEnd, ScriptObserver
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession
from aboard.transport.supervisor_messages import OutputChunk

if TYPE_CHECKING:
    from aboard.core.launchers.slurm.captured_steps import JobReader

# The child of a script's supervisor, and the number behind the run's id that the supervisor has: ranks' begin with 1.
CHILD = "script"
SUPERVISOR_NUMBER = 0
# How soon the view says what a script does, and how often it asks again.
ACTIVITY_SECONDS = 2.0
# How soon after its end a script's processes in the background call their launcher.
BACKGROUND_SECONDS = 3.0
# For the supervisor's own cleanup, after the grace period.
SWEEP_SECONDS = 10.0
# For what launchers still have to print when they end with the run.
END_SECONDS = 1.0


class ScriptSessions:
    """The scripts of a run, by node, in the order in which they were started."""

    def __init__(
        self,
        run: str,
        dialer: NodeDialer,
        lease: Lease,
        record: Record | None,
        script_observer: ScriptObserver,
        job: "JobReader | None" = None,
        first: int = 0,
    ) -> None:
        # Gets what scripts print, as tasks of an srun do.
        self.on_output: Callable[[OutputChunk], object] = lambda _chunk: None
        # In a Slurm job, an srun of the script may be none for us, or one of a loop; `first` is the first script's
        # number in the record.
        self._job = job
        self._first = first
        self._run = run
        self._dialer = dialer
        self._lease = lease
        self._record = record
        self._script_observer = script_observer
        self._scripts: dict[str, NodeScript] = {}
        # Supervisors that may be needed: starting one takes longer than many a script.
        self._prepared: dict[str, tuple[NodeScript, asyncio.Task[None]]] = {}
        # Set when a script calls a launcher while an earlier one waits, or when one was ended before its run.
        self.parallel, self.withdrawn = asyncio.Event(), asyncio.Event()
        self._second: tuple[NodeScript, int] | None = None
        self._judging: set[asyncio.Task[None]] = set()
        self._has_noted = bool(first)

    async def _judge_step(self, script: NodeScript, number: int) -> None:
        """Lets an srun run that is none for us; another waits, and is a second launcher unless it is one of a loop."""
        assert self._job is not None  # noqa: S101 - no other session gets here
        try:
            step = parse_capture(await script.session.get_capture(number), node=script.node, number=number)
            runs_itself, loop = self._job.runs_itself(step), self._job.count_loop(step)
        except AboardError as error:
            script.add(error)
            return
        if runs_itself:
            with suppress(TransportError):
                await script.session.release_launcher(number, RUN_ITSELF)
            return
        earlier = [*script.waiting]
        script.waiting.append(number)
        script.loops[number] = loop
        sizes = {script.loops.get(each, 0) for each in script.waiting}
        is_loop = len(sizes) == 1 and sizes != {0} and len(script.waiting) <= max(sizes)
        if earlier and not is_loop:
            self._note_second(script, number)
        script.add(step)

    def _judge_later(self, script: NodeScript, number: int) -> None:
        task = asyncio.create_task(self._judge_step(script, number))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def get_second(self) -> Capture | None:
        """The launcher that was called while another one waited; None if there was none."""
        if self._second is None:
            return None
        script, number = self._second
        return parse_capture(await script.session.get_capture(number), node=script.node)

    def _note_second(self, script: NodeScript, number: int) -> None:
        self._second = self._second or (script, number)
        self.parallel.set()

    def say_captured(self, text: str, notes: Sequence[str]) -> None:
        """Shows which launcher was captured, and how its command is understood."""
        self._script_observer.script_captured(text, notes)

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that have a script."""
        return list(self._scripts)

    def assign_loop(self, nodes: Mapping[int, str]) -> None:
        """Says which node's ranks each launcher of a loop would have started, by its number."""
        for script in self._scripts.values():
            script.loop_nodes = dict(nodes)

    def has_launcher(self, node: str) -> bool:
        """Whether a launcher waits on this node."""
        return node in self._scripts and bool(self._scripts[node].waiting)

    def print_output(self, chunk: OutputChunk) -> bool:
        """Prints what was written on a node as its launcher would, or else the first one; False if none does."""
        script = self._scripts[chunk.node] if self.has_launcher(chunk.node) else next(iter(self._scripts.values()))
        named = [number for number in script.waiting if script.loop_nodes.get(number) == chunk.node]
        output = next((script.outputs[each] for each in (named or script.waiting) if each in script.outputs), None)
        return output is not None and output.take(chunk)

    def prepare(self, node: Node) -> None:
        """Starts a supervisor on a node that may get the script later."""
        script = self._build_script(node)
        self._prepared[node.name] = script, asyncio.create_task(script.session.begin())

    async def drop_prepared(self) -> None:
        """Ends the supervisors that got no script."""
        prepared, self._prepared = list(self._prepared.values()), {}
        await asyncio.gather(*(self._drop(*each) for each in prepared))

    async def _drop(self, script: NodeScript, beginning: "asyncio.Task[None]") -> None:
        try:
            await asyncio.wait_for(beginning, SWEEP_SECONDS)
        except (TimeoutError, TransportError):
            await script.session.leave()
        else:
            await self._end_script(script, 0.0, SWEEP_SECONDS)

    async def start(self, node: Node, start: Start) -> None:
        """Starts the script on a node; raises TransportError if that fails."""
        if node.name not in self._prepared:
            self.prepare(node)
        script, beginning = self._prepared[node.name]
        await beginning
        self._scripts[node.name] = self._prepared.pop(node.name)[0]
        script.index = self._first + len(self._scripts) - 1
        await script.session.start(start)

    def _build_script(self, node: Node) -> NodeScript:
        script = NodeScript(node.name, self._record, self._script_observer)
        if self._job is not None:
            script.on_step = partial(self._judge_later, script)
        script.on_output = self.on_output
        script.on_parallel, script.on_withdrawn = partial(self._note_second, script), self.withdrawn.set
        script.session = NodeSession(
            node,
            self._dialer,
            # Several of them may be on one node.
            run=f"{self._run}.{SUPERVISOR_NUMBER}" + (f".{self._first}" if self._first else ""),
            key=token_hex(16),
            lease=self._lease,
            known_children=frozenset({CHILD}),
            on_event=script.take,
            on_output=script.take_output,
            on_state=script.take_state,
        )
        return script

    async def wait(self, node: str) -> Outcome:
        """The next launcher that the node's script calls, or its end; meanwhile the observer is told what it does."""
        script = self._scripts[node]
        while not script.outcomes:
            script.changed.clear()
            try:
                await asyncio.wait_for(script.changed.wait(), ACTIVITY_SECONDS)
            except TimeoutError:
                if self._record is not None:
                    self._record.tick(monotonic())
                await self._show_activity(script)
        self._script_observer.script_waits("")
        if script.may_call_later:
            script.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(script.changed.wait(), BACKGROUND_SECONDS)
        # The end stays, behind what processes in the background have called since.
        outcome = next((each for each in script.outcomes if not isinstance(each, ScriptEnd)), script.outcomes[0])
        if isinstance(outcome, ScriptEnd):
            return outcome
        script.outcomes.remove(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, int):
            outcome = parse_capture(await script.session.get_capture(outcome), node=node, number=outcome)
        return script.open_output(outcome) if isinstance(outcome, Capture) else outcome

    async def release(self, code: int) -> None:
        """Lets all waiting launchers return this exit code; a node that is lost has no launcher any more."""
        if self._record is not None:
            # The view shows what has been written.
            self._record.flush()
        self._script_observer.script_resumes()
        self.withdrawn.clear()
        await self._finish_outputs(LAST_SECONDS)
        for script in self._scripts.values():
            waiting, script.waiting = script.waiting, []
            for number in waiting:
                with suppress(TransportError):
                    await script.session.release_launcher(number, code)

    async def end(self, within: float | None = None) -> None:
        """Terminates all scripts, with their traps, and waits until they are gone; at most this time if it is given."""
        for task in self._judging:
            task.cancel()
        await self._finish_outputs(END_SECONDS)
        dropping = asyncio.create_task(self.drop_prepared())
        grace = self._lease.grace if within is None else within / 2
        seconds = grace + SWEEP_SECONDS if within is None else within
        ends = [asyncio.create_task(self._end_script(script, grace, seconds)) for script in self._scripts.values()]
        await asyncio.wait([dropping, *ends])

    async def _finish_outputs(self, seconds: float) -> None:
        outputs = [output for script in self._scripts.values() for output in script.outputs.values()]
        for script in self._scripts.values():
            script.outputs = {}
        await asyncio.gather(*(output.finish(seconds) for output in outputs))

    async def _end_script(self, script: NodeScript, grace: float, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await script.session.end(grace)
                await script.session.wait_gone()
        except (TimeoutError, TransportError):
            # Disconnected: its supervisor ends it when the lease expires.
            pass
        finally:
            await script.session.leave()
            script.flush()

    async def _show_activity(self, script: NodeScript) -> None:
        if not self._has_noted and not script.called:
            self._has_noted = True
            self._script_observer.script_note(f"the script on {script.node} is not monitored until it calls a launcher")
        with suppress(TransportError):
            activity = await script.session.get_activity()
            command, name = activity.command.visible(200), activity.script.visible(200)
            where = f"({name} line {activity.line})" if activity.line else ""
            doing = " ".join(filter(None, [f"`{command}`" if command else "", where]))
            said = f"{script.node} {'runs on, after a launcher' if script.called else 'has called no launcher yet'}"
            self._script_observer.script_waits(f"{said}{f': {doing}' if doing else ''}; {activity.seconds:.0f} s")
