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
from aboard.core.run.event_kinds import AttemptStarted, Recovering
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import Action, RecoverySettings
from aboard.core.run.run_state import Run
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import launch
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.event_log import read_events
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator
from aboard.trainer.batch_plan import BatchPlanner
from aboard.trainer.data.sampling.source_mixing import SequenceDraw
from aboard.trainer.progress import TrainingProgress

NODES, SPARES, RANKS = 6, 2, 4
# Long enough that a busy machine loses no node.
LEASE = Lease(seconds=10.0, grace=1.0, beat=1.0)
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
        pass

    def tick(self, now: float) -> None:
        conductor = self._conductor
        if conductor is None or conductor.run.stopping:
            return
        # Simulated ranks don't wait for each other: all must have come so far.
        if conductor.run.generation.number == self._attempts and len(conductor.run.steps) == NODES * RANKS:
            conductor.stop("all failures are over")


def name_node(seed: int, number: int) -> str:
    """Its own for each seed, since all share one simulator."""
    return f"t{seed}s{number}"


def draw_trial(seed: int) -> Trial:
    """Up to three attempts fail: by a killed rank, by a node that falls silent, or by two kills at once."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    kills: dict[str, dict[str, float]] = {}
    silent: dict[str, float] = {}
    failures = draw.randint(1, 3)
    for attempt in range(1, failures + 1):
        if attempt == 1 and draw.random() < 0.4:
            silent[name_node(seed, draw.randrange(1, NODES))] = draw.uniform(1.0, 4.0)
            continue
        for _ in range(draw.choice((1, 1, 2))):
            rank = draw.randrange(NODES * RANKS)
            # In place of a silent node there is a spare, with the same ranks: then nothing happens, and the next does.
            kills.setdefault(name_node(seed, rank // RANKS), {})[f"{attempt}/{rank}"] = draw.uniform(0.5, 4.0)
    names = {*kills, *silent}
    faults = {name: FakeNodeFaults(kills=kills.get(name, {}), silent=silent.get(name)) for name in names}
    for node in silent:
        kills.pop(node, None)
    attempts = {int(key.partition("/")[0]) for each in kills.values() for key in each} | ({1} if silent else set())
    expected = next(number for number in range(1, failures + 2) if number not in attempts) - 1
    return Trial(seed=seed, faults=faults, failures=expected)


async def run_trial(trial: Trial, folder: Path, socket: Path) -> None:
    cluster = Cluster(
        nodes=tuple(Node(name=name_node(trial.seed, number), slots=RANKS) for number in range(NODES + SPARES))
    )
    run = Runs(folder).create(datetime.now(UTC), random.Random(trial.seed))  # noqa: S311 - a name, no secret
    record = Record.open(run, ranks=NODES * RANKS)
    spares = tuple(name_node(trial.seed, number) for number in range(NODES, NODES + SPARES))
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
    begins = [place for place, event in enumerate(events) if event.kind == "generation"]
    numbers = [event.body.number for event in events if isinstance(event.body, AttemptStarted)]
    if numbers != list(range(1, failures + 2)):
        yield f"attempts {numbers} after {failures} failures"
    decided = [event.body.decision.action for event in events if isinstance(event.body, Recovering)]
    if Action.SHRINK in decided:
        yield "a smaller world"
    for number, begin, end in zip(numbers, begins, [*begins[1:], len(events)], strict=True):
        attempt = events[begin:end]
        started = [event.child for event in attempt if event.kind == "started"]
        if len(started) != len(set(started)) or (number == numbers[-1] and len(started) != NODES * RANKS):
            yield f"attempt {number} had {len(started)} ranks, {len(set(started))} different"
        # A node that is lost has had its lease; all others have reported their end.
        over = {event.node for event in attempt if event.kind in ("ended", "gone")}
        if left := {event.node for event in attempt if event.kind == "started"} - over:
            yield f"attempt {number + 1} began while {sorted(left)} had not ended"
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
    """Kills between and after saves: each resume continues at the newest save, and all samples are used once."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    size, total = draw.randint(1, 32), draw.randint(200, 2000)
    world, every = draw.randint(1, min(size, 8)), draw.randint(1, 20)

    def plan(rank: int) -> BatchPlanner:
        draws = [SequenceDraw(source="a", bin=(7919 * index) % 10_007, epoch=0) for index in range(total)]
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
