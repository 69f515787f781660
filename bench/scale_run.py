"""One size of the scale bench, in its own process: two runs over simulated nodes and their cost for the conductor."""

import asyncio
import io
import json
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import monotonic, process_time, time

from rich.console import Console

from aboard.commands.launch.view.roster_view import RosterView
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.rank_phases import Phase
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.conductor.control_socket import build_live_progress
from aboard.engine.launch_run import LaunchResult, launch
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator
from aboard.transport.open_file_limit import raise_open_file_limit

RANKS = 8
WELL = FakeNodeFaults()
# Until the last rank trains: time of the simulated ranks, and our allowance per node.
START_SECONDS, START_SECONDS_A_NODE = 4.0, 0.02
SETTLE_SECONDS = 2.0


@dataclass(kw_only=True)
class Cost:
    """The cost of one size, in wall-clock seconds; `_cpu` fields are CPU seconds."""

    start: float = 0.0
    start_cpu: float = 0.0
    train: float = 0.0
    train_cpu: float = 0.0
    steady: float = 0.0
    steady_cpu: float = 0.0
    picture_cpu: float = 0.0
    pictures: int = 0
    picture_gap: float = 0.0
    sample_age: float = 0.0
    fail: float = 0.0
    fail_cpu: float = 0.0
    stop: float = 0.0
    stop_cpu: float = 0.0
    megabytes: float = 0.0
    wrong: str = ""


class Watch:
    """A viewer that draws the rank table at each tick as on a 120 × 40 terminal, and measures times."""

    def __init__(self, cost: Cost, *, stop: bool) -> None:
        self.ended_from = (0.0, 0.0)
        self._cost = cost
        self._stop = stop
        self._console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
        self._began = (monotonic(), process_time())
        self._started = 0
        self._steady_from: tuple[float, float] | None = None
        self._pictures, self._count = 0.0, 0
        self._drawn = 0.0
        self._world = 0
        self.conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._world = conductor.plan.world

    def event(self, event: Event) -> None:
        if event.kind == "started":
            self._started += 1
            if self._started == self._world and not self._stop:
                self._cost.start, self._cost.start_cpu = measure_since(self._began)
        elif event.kind == "raised":
            self._end_steady(event.at)
            self.ended_from = (monotonic() - (time() - event.at), process_time())

    def tick(self, now: float) -> None:
        assert self.conductor is not None
        conductor = self.conductor
        steady = self._steady_from is not None and not self.ended_from[0]
        if steady and self._drawn:
            self._cost.picture_gap = max(self._cost.picture_gap, monotonic() - self._drawn)
        before = process_time()
        self._console.print(RosterView(build_live_progress(conductor)))
        self._console.file = io.StringIO()
        self._drawn = monotonic()
        self._pictures += process_time() - before
        self._count += 1
        if conductor.run.generation.phases[Phase.STEPS] == self._world and self._steady_from is None:
            self._steady_from = (monotonic() + SETTLE_SECONDS, 0.0)
            if not self._stop:
                self._cost.train, self._cost.train_cpu = measure_since(self._began)
        if self._steady_from and not self._steady_from[1] and monotonic() >= self._steady_from[0]:
            if self._stop:
                self.ended_from = (monotonic(), process_time())
                conductor.stop("the bench has seen enough")
            self._steady_from = (monotonic(), process_time())
            self._pictures, self._count = 0.0, 0

    def _end_steady(self, now: float) -> None:
        assert self.conductor is not None
        if self._steady_from is None:
            return
        self._cost.steady, self._cost.steady_cpu = measure_since(self._steady_from)
        self._cost.picture_cpu, self._cost.pictures = self._pictures, self._count
        self._cost.sample_age = max(now - sample.at for sample in self.conductor.run.samples.values())


def measure_since(then: tuple[float, float]) -> tuple[float, float]:
    """Wall-clock and CPU seconds since then."""
    return monotonic() - then[0], process_time() - then[1]


async def measure(nodes: int, steady: float) -> Cost:
    """Runs twice: once until a rank dies after some training, once until a stop."""
    cluster = Cluster(nodes=tuple(Node(name=f"s{number}", slots=RANKS) for number in range(nodes)))
    raise_open_file_limit(nodes)
    cost = Cost()
    victim = nodes // 2 * RANKS + 3
    after = START_SECONDS + START_SECONDS_A_NODE * nodes + SETTLE_SECONDS + steady
    part = FakeNodeFaults(dies={str(victim): after})
    async with run_simulator() as path:
        with tempfile.TemporaryDirectory(prefix="aboard-scale-") as folder:
            watch = Watch(cost, stop=False)
            launched = await _launch_run(cluster, watch, Path(folder), path, {f"s{victim // RANKS}": part})
            cost.fail, cost.fail_cpu = measure_since(watch.ended_from)
            cost.wrong = _find_errors(launched, watch, (victim,))
            watch = Watch(cost, stop=True)
            launched = await _launch_run(cluster, watch, Path(folder), path, {})
            cost.stop, cost.stop_cpu = measure_since(watch.ended_from)
            cost.wrong += _find_errors(launched, watch, ())
    cost.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return cost


async def _launch_run(
    cluster: Cluster, watch: Watch, folder: Path, path: Path, parts: dict[str, FakeNodeFaults]
) -> LaunchResult:
    run = Runs(folder).create(datetime.now(UTC), Random())  # noqa: S311 - a name, no secret
    record = Record.open(run, ranks=len(cluster) * RANKS)
    request = LaunchRequest(
        program=Program(kind=ProgramKind.SCRIPT, target="train.py", args=("--config", "llama-8b.yaml"))
    )
    try:
        return await launch(
            LaunchSpec(cluster=cluster, request=request),
            record,
            check_observer=NullCheckObserver(),
            run_observer=watch,
            transport_for=lambda node: SimulatedTransport(path, faults=parts.get(node.name, WELL)),
        )
    finally:
        record.close()
        assert not record.dropped, record.dropped


def _find_errors(launched: LaunchResult, watch: Watch, victim: tuple[int, ...]) -> str:
    """What went wrong: the dead rank not named, or nodes that never reported their end."""
    assert launched.outcome is not None
    assert watch.conductor is not None
    findings = launched.findings
    named = findings[0].ranks if findings else ()
    places = watch.conductor.run.generation.connections.values()
    still = sum(not place.ended for place in places)
    wrong = [f"ranks {named} were named, not {victim}"] * (named != victim) + [f"{still} nodes not terminated"] * (
        still > 0
    )
    return "; ".join(wrong)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(measure(int(sys.argv[1]), float(sys.argv[2]))))))
