"""The Slurm transport: dials that come together share one srun."""

import asyncio
import os
import shutil
from dataclasses import field
from weakref import WeakKeyDictionary

from aboard.core.cluster.node import Node
from aboard.core.slurm.job_nodes import ALONE_OPTION
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.transport.slurm.srun_log import classify_srun_failure
from aboard.transport.slurm.srun_step import SrunStep, start_step
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding

# As over ssh: a task whose head is gone without notice exits after this long without a frame.
SILENCE_SECONDS = 30.0
# Every node of a step reads what is written to any of them; this bounds the copies.
NODES_PER_STEP = 64
_QUOTED = 300
# What srun itself waits for, longer than we do.
_WAITED_FOR = (
    UnreachableReason.STEP_REFUSED,
    UnreachableReason.STEP_ABORTED,
    UnreachableReason.NO_SLURMD,
    UnreachableReason.NO_SLURMCTLD,
)
# Dials of many nodes come within a turn of the loop, those after a lost step within a few milliseconds.
GATHER_SECONDS = 0.01


class SlurmTransport:
    """`srun -w nodes python3 …` inside a job; a node that is dialled alone, as after a disconnect, gets its own."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("starting a step")
        if shutil.which("srun") is None:
            raise Unreachable(UnreachableReason.NO_SRUN, "there is no srun program on this machine")
        if "SLURM_JOB_ID" not in os.environ:
            # srun would submit a job of its own, and wait for it.
            raise Unreachable(UnreachableReason.SRUN_FAILED, "this process does not run inside a Slurm job")
        step = await _find_gatherer().join(node)
        return step.streams[node.name]

    def classify(self, ending: StreamEnding) -> tuple[UnreachableReason, str]:
        # The stream has dropped the lines about other nodes.
        return classify_srun_failure(ending.stderr, "", ending.exit_code)

    def explain_timeout(self, ending: StreamEnding) -> tuple[str, str]:
        reason, line = self.classify(ending)
        if reason in _WAITED_FOR:
            raise Unreachable(reason, escape_text(line, _QUOTED))
        return "starting a step", "srun did not start the agent"


class _StepGatherer:
    """Collects the nodes that are dialled within a moment, and starts one step for all of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Node, asyncio.Future[SrunStep]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, node: Node) -> SrunStep:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(GATHER_SECONDS, self._start_gathered)
        joined: asyncio.Future[SrunStep] = loop.create_future()
        self._waiting.append((node, joined))
        return await joined

    def _start_gathered(self) -> None:
        waiting, self._waiting = self._waiting, []
        steps: list[_StepPlan] = []
        for node, joined in waiting:
            if not joined.cancelled():
                key = (node.python, node.step_options)
                plan = next((plan for plan in steps if plan.key == key and plan.has_room(node.name)), None)
                if plan is None:
                    plan = _StepPlan(key=key)
                    steps.append(plan)
                plan.joined[node.name] = joined
        for plan in steps:
            task = asyncio.create_task(_start_planned_step(plan))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


@dataclass(frozen=True, kw_only=True)
class _StepPlan:
    """A step to start: what its nodes have in common, and who waits for each of them."""

    key: tuple[str, tuple[str, ...]]
    joined: "dict[str, asyncio.Future[SrunStep]]" = field(default_factory=dict)

    def has_room(self, name: str) -> bool:
        is_shared = not any(option.startswith(ALONE_OPTION) for option in self.key[1])
        return is_shared and name not in self.joined and len(self.joined) < NODES_PER_STEP


async def _start_planned_step(plan: _StepPlan) -> None:
    python, options = plan.key
    try:
        step = await start_step(list(plan.joined), python, SILENCE_SECONDS, options=options)
    except OSError as error:
        for joined in plan.joined.values():
            if not joined.done():
                seen = f"cannot start srun on this machine: {error}"
                joined.set_exception(Unreachable(UnreachableReason.SRUN_FAILED, seen))
        return
    for name, joined in plan.joined.items():
        if joined.cancelled():
            # Nobody waits for it any more.
            await step.streams[name].close()
        else:
            joined.set_result(step)


_GATHERERS: "WeakKeyDictionary[asyncio.AbstractEventLoop, _StepGatherer]" = WeakKeyDictionary()


def _find_gatherer() -> _StepGatherer:
    """The gatherer of this event loop: dialers that are made separately share steps, too."""
    return _GATHERERS.setdefault(asyncio.get_running_loop(), _StepGatherer())
