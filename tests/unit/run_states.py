"""Runs at chosen moments, folded from their events as a conductor would."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from made_events import made_event

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import MasterAddress, Plan
from aboard.core.plan.plan_builder import build_plan
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Measurement
from aboard.core.run.rank_phases import BEACON_PHASES, Phase
from aboard.core.run.run_progress import RunProgress, build_run_progress
from aboard.core.run.run_state import Run
from aboard.diagnoses.untrusted import Untrusted

RUN = "20261115-0507-brave-otter"
PROGRAM = Program(kind=ProgramKind.SCRIPT, target="train.py", args=("--lr", "2e-5", "--name", "it's mine"))
BEGAN = 1000.0
GIB = 1024.0**3
TELLING = {phase: word for word, phase in BEACON_PHASES.items()}


def names(count: int) -> list[str]:
    width = len(str(count))
    return [f"n{number:0{width}}" for number in range(1, count + 1)]


def plan_of(nodes: Cluster, *, ranks: int | None = None, seat: NodeResources | None = None, **request: Any) -> Plan:
    seats = {
        node.name: seat or NodeResources(address=f"{node.name}.example", interface="ib0", cores=64) for node in nodes
    }
    wanted = LaunchRequest(program=request.pop("program", PROGRAM), ranks=ranks, **request)
    first = nodes.nodes[0].name
    return build_plan(nodes, wanted, seats, run=RUN, master=MasterAddress(node=first, address="10.0.0.1", port=29500))


def cluster(count: int, **node: Any) -> Cluster:
    return Cluster(nodes=tuple(Node(name=name, **node) for name in names(count)))


@dataclass
class Scene:
    """A run that is told what happens; `at` is in seconds since it began."""

    nodes: int
    ranks: int
    plan: Plan = field(init=False)
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self.plan = plan_of(cluster(self.nodes, slots=self.ranks), ranks=self.ranks)
        self.run = Run(id=RUN)
        self.event(0.0, "generation", number=1)

    def event(self, at: float, kind: str, node: str = "", child: str = "", **data: Any) -> None:
        self.run.apply(made_event(kind, node=node, at=BEGAN + at, child=child, **data))

    def held(self, at: float = 0.5) -> None:
        for part in self.plan.parts:
            self.event(at, "held", part.node.name)

    def come(self, at: float, phase: Phase, ranks: "range | None" = None) -> None:
        """These ranks, or all, come to a phase one after the other."""
        world = self.plan.world
        for node, start in self.plan.starts():
            if start.rank is None or (ranks is not None and start.rank not in ranks):
                continue
            when = at + start.rank / world
            if phase is Phase.STARTED:
                self.event(when, "started", node, start.child)
            elif phase is Phase.DONE:
                self.event(when, "exited", node, start.child, code=0)
            else:
                self.event(when, "phase", node, start.child, phase=TELLING[phase])

    def dies(self, at: float, rank: int, type_: str, message: str) -> None:
        node = next(node for node, start in self.plan.starts() if start.rank == rank)
        self.event(at, "raised", node, str(rank), type=type_, message=message)
        self.event(at + 0.1, "exited", node, str(rank), code=1)

    def samples(self, at: float, step: int = 0, memory: "Mapping[str, float] | None" = None) -> None:
        """Figures that differ a little from rank to rank and node to node, as they do."""
        for node, start in self.plan.starts():
            rank = start.rank or 0
            if (node, start.child) not in self.run.generation.children:
                continue
            told = {"step": step + rank % 2, "step_seconds": 0.35} if step else {}
            values = {**told, "rss": 4.2 * GIB, "cpu": 0.9 + rank % 3 / 10}
            self.run.take(Measurement(node=node, at=BEGAN + at, child=start.child, values=values))
        for index, part in enumerate(self.plan.parts):
            name = part.node.name
            share = (memory or {}).get(name, 0.41 + index % 3 / 100)
            values = {"load": 8.0 + index % 4 / 2, "memory": share}
            self.run.take(Measurement(node=name, at=BEGAN + at, values=values))

    def at(self, seconds: float, tail: tuple[str, ...] = ()) -> RunProgress:
        return build_run_progress(self.plan, self.run, BEGAN + seconds, tail=tuple(map(Untrusted, tail)))


TRACE = (
    "Traceback (most recent call last):",
    '  File "/home/crew/train.py", line 3, in <module>',
    "    import flash_attn",
    "ModuleNotFoundError: No module named 'flash_attn'",
)


def starting(nodes: int, ranks: int) -> RunProgress:
    """All but the last quarter have their store; the last rank is slow with torch, a node has not started."""
    scene = Scene(nodes, ranks)
    world = nodes * ranks
    scene.held()
    scene.come(1.0, Phase.STARTED, range(world - ranks))
    scene.come(1.2, Phase.PYTHON, range(world - ranks))
    scene.come(3.0, Phase.TORCH, range(world - ranks - 1))
    scene.come(4.0, Phase.STORE, range(world * 3 // 4))
    scene.samples(5.0)
    return scene.at(6.2)


def training(nodes: int, ranks: int, *, full: str = "") -> RunProgress:
    scene = Scene(nodes, ranks)
    scene.held()
    for phase in (Phase.STARTED, Phase.PYTHON, Phase.TORCH, Phase.STORE, Phase.GROUP, Phase.COLLECTIVE):
        scene.come(float(phase), phase)
    scene.samples(190.0, step=1200, memory={full: 0.93} if full else None)
    return scene.at(192.0, ("epoch 0 \rstep 1200 \x1b[32mloss 2.31\x1b[0m",))


def dead(nodes: int, ranks: int) -> RunProgress:
    """A rank in the middle died while importing; the run is being ended."""
    scene = Scene(nodes, ranks)
    world = nodes * ranks
    scene.held()
    scene.come(1.0, Phase.STARTED)
    scene.come(1.5, Phase.PYTHON)
    scene.come(3.0, Phase.TORCH, range(world // 2))
    scene.dies(4.0, world // 2, "ModuleNotFoundError", "No module named 'flash_attn'")
    scene.event(4.2, "stopping", why=f"rank {world // 2} died")
    scene.samples(4.5)
    return scene.at(5.0, TRACE)


def silent(nodes: int, ranks: int) -> RunProgress:
    """All are in the group, while the last node's wire is cut since 14 s."""
    scene = Scene(nodes, ranks)
    scene.held()
    for phase in (Phase.STARTED, Phase.PYTHON, Phase.TORCH, Phase.STORE, Phase.GROUP):
        scene.come(float(phase), phase)
    scene.event(30.0, "cut", names(nodes)[-1], why="no beat came over the wire")
    scene.samples(40.0)
    return scene.at(44.0)
