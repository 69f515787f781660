"""Thirty days of 1,000 nodes as discrete events: `train.save_steps: auto` beside every constant interval.

What fails, and how often, is what Meta reported of 54 days of pre-training Llama 3 (419 unexpected interruptions of
16,384 GPUs, by cause: table 5 of "The Llama 3 Herd of Models"), since it is one training at this scale, and the only
such table by cause. 8,000 GPUs then fail every 6.3 hours. Shown beside it is the rate of Meta's research clusters, with
the same causes: 1,024 GPUs every 7.9 hours (Kokolis et al., 2025), here every hour.

What is done about a failure is decided by Aboard's own functions: `RunFailure.classify`, `decide_recovery`,
`estimate_failure_interval` and `decide_save_interval`. Costs are measured, with the command behind each, or assumed
where no machine here can measure them. All intervals meet the same failures.

    python bench/recovery_month.py [--quick] [--json FILE]

Unless `--quick`, it also writes docs/pictures/recovery-month.svg.
"""

import random
import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path

from aboard.core.run.recovery.recovery_policy import Action, Failure, RecoverySettings, decide_recovery
from aboard.core.run.recovery.save_interval import SaveCost, decide_save_interval, estimate_failure_interval
from aboard.diagnoses import RunFailure
from aboard.diagnoses.catalogue import all_diagnoses
from aboard.diagnoses.failure_class import FailureClass
from figures import Figures, main
from recovery_month_picture import Curve, draw_picture

NODES, SLOTS, SPARES = 1000, 8, 32
RANKS = NODES * SLOTS
HOUR, DAY = 3600.0, 86_400.0
MONTH = 30 * DAY
# Seconds between two failures of the whole run.
RATES = {"Llama 3": 54 * DAY / 419 * 16_384 / RANKS, "research clusters": 7.9 * HOUR * 1024 / RANKS}

# What is measured, on two cores.
# From a rank that died to the verdict, and until a hang is certain: medians and worst of `python bench/faults.py`.
DETECTION_SECONDS, HANG_SECONDS = 4.3, 22.6
# A hang's verdict stands for 60 s, and a lost node is silent for 20 s: docs/recovery.md.
STANDING_SECONDS, SILENT_SECONDS = 60.0, 20.0
# 1,000 simulated nodes of 8 ranks, until they are terminated, and until they have started: `python bench/scale.py`.
STOPPING_SECONDS, STARTING_SECONDS = 2.4, 3.6
# A tiny model on 2 hosts, to its next step, from standbys and without: `python bench/standby.py`. Spares have none.
STANDBY_SECONDS, COLD_SECONDS = 2.2, 9.7
# The stall of an asynchronous save as a share of a synchronous one: `python bench/train.py`.
STALL_SHARE = 0.003

# What is assumed: 405 billion parameters with AdamW (12 bytes each), a disk of 1 GB/s, copies at the default rate.
PART_BYTES = 405e9 * 12 / NODES
SAVE_SECONDS = LOAD_SECONDS = PART_BYTES / 1e9
COPY_SECONDS = PART_BYTES / 200e6
# Until 8,000 ranks have formed NCCL's groups.
GROUP_SECONDS = 60.0
# Until a person has seen to a run that stopped, and until a node that was replaced is repaired.
PERSON_SECONDS, REPAIR_SECONDS = HOUR / 2, DAY
STEP_SECONDS, LOGGING_STEPS = 5.0, 10

INTERVALS: tuple[float, ...] = (
    5,
    10,
    15,
    20,
    30,
    45,
    60,
    90,
    120,
    180,
    240,
    300,
    450,
    600,
    900,
    1200,
    1800,
    2700,
    3600,
    5400,
    7200,
)
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "recovery-month.svg"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A row of Meta's table: how many of 419, and the failure that Aboard would name."""

    name: str
    count: int
    code: str
    variant: str = ""

    @property
    def kind(self) -> FailureClass:
        failure = all_diagnoses()[self.code]
        assert isinstance(failure, RunFailure)
        return failure.classify(self.variant)

    @property
    def is_lost(self) -> bool:
        return self.code == "run-node-gone"

    @property
    def detection(self) -> float:
        if self.is_lost:
            return SILENT_SECONDS
        return HANG_SECONDS + STANDING_SECONDS if self.code.startswith("hang-") else DETECTION_SECONDS


CAUSES = (
    Cause(name="faulty GPU", count=148, code="gpu-xid", variant="gone"),
    Cause(name="GPU HBM3 memory", count=72, code="gpu-ecc"),
    Cause(name="software bug", count=54, code="run-raised"),
    Cause(name="network switch or cable", count=35, code="hang-link-cut"),
    Cause(name="host maintenance", count=32, code="run-node-gone"),
    Cause(name="GPU SRAM memory", count=19, code="gpu-ecc"),
    Cause(name="GPU system processor", count=17, code="gpu-xid", variant="processor"),
    Cause(name="NIC", count=7, code="hang-link-down"),
    Cause(name="NCCL watchdog timeout", count=7, code="hang-unknown"),
    Cause(name="silent data corruption", count=6, code="train-nonfinite"),
    Cause(name="GPU thermal interface and sensor", count=6, code="run-node-gone"),
    Cause(name="SSD", count=3, code="storage-read-only"),
    Cause(name="power supply, chassis, IO board, CPU, memory", count=11, code="run-node-gone"),
    Cause(name="dependency", count=2, code="run-raised"),
)
assert sum(cause.count for cause in CAUSES) == 419


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A failure at a time of the month, on a node."""

    at: float
    cause: Cause
    node: int


def draw_troubles(every: float, seed: int) -> Iterator[Trouble]:
    draw = random.Random(seed)  # noqa: S311 - no secrets
    at, counts = 0.0, [cause.count for cause in CAUSES]
    while (at := at + draw.expovariate(1 / every)) < MONTH:
        yield Trouble(at=at, cause=draw.choices(CAUSES, counts)[0], node=draw.randrange(NODES))


@dataclass(kw_only=True)
class Saves:
    """The checkpoints of a run: when each was complete, and copied to the next node, which takes the newest first."""

    asynchronous: bool
    # Step, complete since, copied since.
    done: deque[tuple[int, float, float]] = field(default_factory=lambda: deque([(0, 0.0, 0.0)], maxlen=50))
    stalls: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    # When the copier ends what it copies now, and whether another one waits for that.
    copier_free: float = 0.0
    waiting: bool = False

    def save(self, step: int, at: float) -> float:
        """The seconds that training waits."""
        *_, before = (complete for _, complete, _ in self.done)
        begins = max(at, before)
        complete = begins + SAVE_SECONDS
        stall = begins - at + SAVE_SECONDS * (STALL_SHARE if self.asynchronous else 1.0)
        if self.waiting and complete >= self.copier_free:
            self.copier_free, self.waiting = self.copier_free + COPY_SECONDS, False
        if complete >= self.copier_free:
            copied = self.copier_free = complete + COPY_SECONDS
        else:
            if self.waiting:
                self.done[-1] = (*self.done[-1][:2], inf)
            copied, self.waiting = self.copier_free + COPY_SECONDS, True
        self.done.append((step, complete, copied))
        self.stalls.append(stall)
        return stall

    def find_newest(self, at: float, *, copied: bool) -> int:
        return max((step for step, complete, copy in self.done if (copy if copied else complete) <= at), default=0)

    def fail(self, at: float, step: int) -> None:
        """The run continues from `step`; what was being saved is lost, and an unfinished copy begins again."""
        kept = [each for each in self.done if each[0] <= step and each[1] <= at] or [(step, at, at)]
        kept = [(one, two, three if three <= at else at + COPY_SECONDS) for one, two, three in kept]
        self.done = deque(kept, maxlen=self.done.maxlen)
        self.copier_free, self.waiting = at, False

    def measure(self, at: float) -> SaveCost:
        """What `SaveSchedule` measures on rank 0."""
        if not self.stalls:
            return SaveCost()
        complete, copied = max(each[1:] for each in self.done if each[1] <= at)
        copy = copied - complete if copied <= at else 2 * (at - complete)
        return SaveCost(stall=statistics.median_low(self.stalls), complete=SAVE_SECONDS + copy)


ACTIVE = tuple(f"n{number}" for number in range(NODES))
SETTINGS = RecoverySettings(restarts=10)
START_SECONDS = STARTING_SECONDS + GROUP_SECONDS + LOAD_SECONDS


@dataclass(kw_only=True)
class Month:
    """One run of a month; `interval` is in seconds, or None for `auto`."""

    interval: float | None
    saves: Saves
    # When ranks began to start, and to train; the time, and the last step that was done.
    began: float = 0.0
    ready: float = START_SECONDS + COLD_SECONDS
    now: float = START_SECONDS + COLD_SECONDS
    step: int = 0
    # Of the run's record, which is empty when a person starts it again.
    failures: list[Failure] = field(default_factory=list)
    counted: int = 0
    trained: float = 0.0
    spares: list[str] = field(default_factory=lambda: [f"s{number}" for number in range(SPARES)])
    repaired: list[float] = field(default_factory=list)
    stops: int = 0
    chosen: list[float] = field(default_factory=list)

    def live(self, troubles: Iterable[Trouble]) -> float:
        """The goodput of the month."""
        for trouble in troubles:
            # Where nothing runs, nothing fails.
            if trouble.at >= self.began:
                self.train_until(trouble.at)
                self.fail(trouble)
        self.train_until(MONTH)
        return self.step * STEP_SECONDS / MONTH

    def train_until(self, end: float) -> None:
        last, every = self.step, self.decide()
        while self.now < end:
            mark = last + every
            if self.interval is None:
                mark = min(mark, self.step - self.step % LOGGING_STEPS + LOGGING_STEPS)
            took = (mark - self.step) * STEP_SECONDS
            if self.now + took > end:
                self.step += int((end - self.now) / STEP_SECONDS)
                self.trained += end - self.now
                break
            self.step = mark
            if mark % LOGGING_STEPS == 0:
                every = self.decide(after=took)
            stall = 0.0
            if mark - last >= every:
                stall, last = self.saves.save(mark, self.now + took), mark
            self.now += took + stall
            self.trained += took + stall

    def decide(self, after: float = 0.0) -> int:
        """The interval in steps."""
        seconds = self.interval
        if seconds is None:
            rate = estimate_failure_interval(ranks=RANKS, seconds=self.trained + after, failures=self.counted)
            seconds = decide_save_interval(self.saves.measure(self.now + after), rate).seconds
            self.chosen.append(seconds)
        return max(1, ceil(seconds / STEP_SECONDS))

    def fail(self, trouble: Trouble) -> None:
        """The policy decides what is done; a run that it stops is started again by a person."""
        cause, at, node = trouble.cause, trouble.at, f"n{trouble.node}"
        self.counted += at >= self.ready
        saved = self.saves.find_newest(at, copied=cause.kind is FailureClass.NODE)
        failure = Failure(
            kind=cause.kind,
            code=cause.code,
            nodes=(node,),
            signature=f"{cause.code} {self.step}",
            checkpoint=saved,
            lost=(node,) if cause.is_lost else (),
        )
        self.failures.append(failure)
        self.saves.fail(at, saved)
        self.step = saved
        decision = decide_recovery(self.failures, SETTINGS, ACTIVE, self.spares)
        self.began = at + cause.detection + STOPPING_SECONDS + decision.pause
        match decision.action:
            case Action.RESTART:
                start = STANDBY_SECONDS
            case Action.REPLACE:
                # The spare fetches its part of the checkpoint from another node.
                start = COLD_SECONDS + LOAD_SECONDS
                self.spares = self.spares[len(decision.spares) :]
                self.repaired += [self.began + REPAIR_SECONDS] * len(decision.spares)
            case _:
                # No node is repaired within the time for which the policy waits.
                start = COLD_SECONDS
                self.began += decision.wait + PERSON_SECONDS
                self.begin_anew()
        self.now = self.ready = self.began + START_SECONDS + start

    def begin_anew(self) -> None:
        self.stops += 1
        self.failures, self.counted, self.trained = [], 0, 0.0
        self.repaired = [at for at in self.repaired if at > self.began]
        self.spares = [f"s{number}" for number in range(SPARES - len(self.repaired))]


def simulate(every: float, interval: float | None, *, asynchronous: bool, seeds: int) -> tuple[float, float, float]:
    """Over the seeds: the mean goodput, the median interval, and the mean number of times that a person was needed."""
    goodputs, chosen, stops = [], [], []
    for seed in range(seeds):
        month = Month(interval=interval, saves=Saves(asynchronous=asynchronous))
        goodputs.append(month.live(draw_troubles(every, seed)))
        chosen += month.chosen
        stops.append(month.stops)
    return statistics.mean(goodputs), statistics.median(chosen or [interval or 0.0]), statistics.mean(stops)


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Simulates 30 days, with `auto` and with constant intervals."""
    seeds = 1 if quick else 5
    curves = []
    for rate, every in RATES.items():
        for asynchronous in (True, False):
            mode = "asynchronous" if asynchronous else "synchronous"
            name = f"{rate}, {mode} saves"
            intervals = INTERVALS[1::3] if quick else INTERVALS
            points = {each: simulate(every, each, asynchronous=asynchronous, seeds=seeds)[0] for each in intervals}
            auto, chosen, stops = simulate(every, None, asynchronous=asynchronous, seeds=seeds)
            best = max(points, key=points.__getitem__)
            note = (
                f"{auto:.3f}, median interval {chosen:.0f} s; best {points[best]:.3f} every {best:.0f} s;"
                f" {MONTH / every:.0f} failures, a person needed {stops:.0f} times"
            )
            figures.add(f"{name}: goodput lost by auto", 1 - auto / points[best], 0.05, note=note)
            curves.append(
                Curve(name=f"{name}: a failure every {every / HOUR:.1f} h", points=points, auto=(chosen, auto))
            )
    if not quick:
        PICTURE.write_text(draw_picture(curves))


if __name__ == "__main__":
    main("recovery_month", measure)
