"""Seeded failures of simulated nodes under the real conductor and policy, and of the data cursor."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.recovery_policy import RecoverySettings
from aboard.core.run.run_state import Run
from aboard.data.sampling.source_mixing import SequenceDraw
from aboard.flows.check.check_observer import NullCheckObserver
from aboard.flows.launch.conductor import Conductor
from aboard.flows.launch.launch_run import LaunchSpec, launch
from aboard.record.event_log import read_events
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator
from aboard.train.batch_plan import BatchPlanner
from aboard.train.progress import TrainingProgress

NODES, SPARES, RANKS = 6, 2, 4
LEASE = Lease(seconds=4.0, grace=1.0, beat=0.5)
PATIENCE = 180.0
# Seeds that run side by side; nearly all of their time is waiting.
TOGETHER = 8


@dataclass(kw_only=True)
class Trial:
    """What happens to one run, and which promises were broken."""

    seed: int
    faults: dict[str, FakeNodeFaults]
    failures: int
    broken: list[str] = field(default_factory=list)


class StopWhenRecovered:
    """Stops the run once its ranks step in the attempt after the last failure."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def event(self, event: Event) -> None:
        run = self._conductor.run if self._conductor is not None else None
        if run is not None and event.kind == "stepping" and run.generation.number == self._attempts:
            self._conductor.stop("all failures are over")

    def tick(self, now: float) -> None:
        pass


def draw_trial(seed: int) -> Trial:
    """Up to three attempts fail: by a killed rank, by a node that falls silent, or by two kills at once."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    kills: dict[str, dict[str, float]] = {}
    silent: dict[str, float] = {}
    failures = draw.randint(1, 3)
    for attempt in range(1, failures + 1):
        if attempt == 1 and draw.random() < 0.4:
            silent[f"s{draw.randrange(1, NODES)}"] = draw.uniform(1.0, 4.0)
            continue
        for _ in range(draw.choice((1, 1, 2))):
            rank = draw.randrange(NODES * RANKS)
            # In place of a silent node there is a spare, with the same ranks: then nothing happens, and the next does.
            kills.setdefault(f"s{rank // RANKS}", {})[f"{attempt}/{rank}"] = draw.uniform(0.5, 4.0)
    names = {*kills, *silent}
    faults = {name: FakeNodeFaults(kills=kills.get(name, {}), silent=silent.get(name)) for name in names}
    for node in silent:
        kills.pop(node, None)
    attempts = {int(key.partition("/")[0]) for each in kills.values() for key in each} | ({1} if silent else set())
    expected = next(number for number in range(1, failures + 2) if number not in attempts) - 1
    return Trial(seed=seed, faults=faults, failures=expected)


async def run_trial(trial: Trial, folder: Path, socket: Path) -> None:
    cluster = Cluster(nodes=tuple(Node(name=f"s{number}", slots=RANKS) for number in range(NODES + SPARES)))
    run = Runs(folder).create(datetime.now(UTC), random.Random(trial.seed))  # noqa: S311 - a name, no secret
    record = Record.open(run, ranks=NODES * RANKS)
    spares = tuple(f"s{number}" for number in range(NODES, NODES + SPARES))
    request = LaunchRequest(program=Program(kind=ProgramKind.SCRIPT, target="train.py"))
    spec = LaunchSpec(
        cluster=cluster, request=request, lease=LEASE, recovery=RecoverySettings(restarts=10, spares=spares)
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await launch(
                spec,
                record,
                check_observer=NullCheckObserver(),
                run_observer=StopWhenRecovered(trial.failures + 1),
                transport_for=lambda node: SimulatedTransport(
                    socket, faults=trial.faults.get(node.name, FakeNodeFaults())
                ),
            )
    except TimeoutError:
        trial.broken.append("it did not end")
    finally:
        record.close()
    trial.broken += find_broken_promises(list(read_events(run.events)), trial.failures)


def find_broken_promises(events: list[Event], failures: int) -> Iterator[str]:
    """Attempts in order, each with the whole world, none before the one before is gone; and the ledger is wall time."""
    folded = Run.replay("chaos", events)
    numbers = [event.data["number"] for event in events if event.kind == "generation"]
    if numbers != list(range(1, failures + 2)):
        yield f"attempts {numbers} after {failures} failures"
    attempt, started, alive = 0, set[str](), dict[tuple[str, str], str]()
    for event in events:
        if event.kind == "generation":
            attempt, started = attempt + 1, set()
            lost = {node for each in events[: events.index(event)] if each.kind == "gone" for node in [each.node]}
            if left := {rank for (node, rank) in alive if node not in lost}:
                yield f"attempt {attempt} began while ranks {sorted(left)} were alive"
            alive = {}
        elif event.kind == "started":
            if event.child in started:
                yield f"rank {event.child} started twice in attempt {attempt}"
            started.add(event.child)
            alive[event.node, event.child] = event.node
        elif event.kind in ("exited", "failed"):
            alive.pop((event.node, event.child), None)
        elif event.kind == "stepping" and len(started) != NODES * RANKS:
            yield f"attempt {attempt} had {len(started)} ranks"
    spent, wall = sum(folded.ledger.measure(events[-1].at).values()), events[-1].at - folded.began
    if abs(spent - wall) > 0.01 * wall:
        yield f"the ledger has {spent:.2f} s of {wall:.2f} s"


async def run_trials(trials: list[Trial]) -> None:
    limit = asyncio.Semaphore(TOGETHER)
    with TemporaryDirectory() as folder:
        async with run_simulator() as socket:

            async def run(trial: Trial) -> None:
                async with limit:
                    await run_trial(trial, Path(folder) / str(trial.seed), socket)
                print(f"    seed {trial.seed}: {trial.failures} failures, {trial.broken or 'ok'}", flush=True)

            await asyncio.gather(*map(run, trials))


def find_cursor_faults(seed: int) -> list[str]:
    """Kills between and after saves: each resume continues at the newest save, and all samples are used exactly once."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    size, total = draw.randint(1, 32), draw.randint(200, 2000)
    world, every = draw.randint(1, min(size, 8)), draw.randint(1, 20)

    def plan(rank: int) -> BatchPlanner:
        draws = [SequenceDraw(source=0, bin=(7919 * index) % 10_007, epoch=0) for index in range(total)]
        return BatchPlanner(
            cursor=draws.__getitem__,
            counts=lambda _draw: (8, 4),
            size=size,
            rows=2,
            total=total,
            rank=rank,
            world=world,
        )

    ranks = [plan(rank) for rank in range(world)]
    *_, whole = plan(0).walk(TrainingProgress())
    saved, progress, committed, used = TrainingProgress(), TrainingProgress(), dict[int, list[int]](), []
    while progress.index < total:
        steps = [rank.plan(progress) for rank in ranks]
        used = [sequence.bin for step in steps for micro in step.micro for sequence in micro]
        committed[steps[0].number], progress = used, steps[0].after
        saved = progress if progress.step % every == 0 else saved
        if draw.random() < 0.02:
            progress = saved
            committed = {step: bins for step, bins in committed.items() if step <= saved.step}
    found = [] if progress == whole.after else ["another chain of samples than without failures"]
    bins = [each for step in committed.values() for each in step]
    return found if len(bins) == len(set(bins)) == total else [*found, "a sample was used twice, or not at all"]
