"""The training loop: from a settled training to its last checkpoint, in the order in which it happens."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from aboard.core.training import Training
from aboard.train.apart import packed_anyway
from aboard.train.batches import Batches
from aboard.train.beacon import count_from
from aboard.train.between import Between
from aboard.train.build import build
from aboard.train.checkpoints import Checkpoints
from aboard.train.communication import told_apart
from aboard.train.ledger import Ledger
from aboard.train.masks import masks
from aboard.train.nonfinite import Tally
from aboard.train.optimizer import adamw
from aboard.train.peers import Peers
from aboard.train.prefetch import Ahead
from aboard.train.progress import Progress
from aboard.train.report import Report
from aboard.train.schedule import learning_rate
from aboard.train.signals import Asked, Requests
from aboard.train.step import Maker, Stepper
from aboard.train.stream import Stream, opened
from aboard.train.world import World


def train(training: Training, world: World) -> Asked:
    """Trains to the end, or until all ranks agree to stop: then it says what they were asked for."""
    ledger = Ledger()
    folder = Path(training.output_dir)
    with Report(training, main=world.main) as report, told_apart(world, ledger):
        peers = Peers(world)
        stream = opened(training.data)
        stepper = _stepper(training, world, ledger)
        if stream.packed and stepper.masks.why_not is not None:
            raise packed_anyway(stepper.masks.why_not)
        booked = partial(ledger.spent, "checkpoint")
        checkpoints = Checkpoints(folder, world, training, training.save_total_limit, spent=booked)
        progress = checkpoints.resume(stepper.engine, stepper.optimizer) or Progress()
        count_from(progress.step)
        report.begin(progress.step)
        for note in (*stepper.engine.notes, *checkpoints.notes):
            report.say(note)

        batches = _batches(training, world, stream)
        steps = batches.steps(progress)
        between = Between(
            stepper=stepper,
            stream=stream,
            checkpoints=checkpoints,
            report=report,
            peers=peers,
            start=progress,
            steps=steps,
        )
        make = Maker(read=stream.read, collate=stepper.masks.collate(), device=world.device)
        asked = Asked.NOTHING
        with _no_garbage(), Requests(folder, peers) as requests, Ahead(batches.walk(progress), make) as ready_steps:
            ledger.spend("data")
            for ready in ready_steps:
                number, progress = ready.planned.number, ready.planned.after
                rate = learning_rate(training, number, steps)
                stepper(ready, rate)

                report.saved(checkpoints.published)
                asked = requests.agreed()
                last = number == steps
                ending = last or asked >= Asked.STOP
                if ending or _due(training.logging_steps, number):
                    requests.pace(between.log(progress, rate))
                if last or _due(training.eval_steps, number):
                    between.evaluate(progress)
                if ending or asked is Asked.SAVE or _due(training.save_steps, number):
                    between.save(progress, wait=ending)
                if ending:
                    break
                ledger.spend("data")
        with ledger.spent("checkpoint"):
            checkpoints.close()
        between.end(progress)
    return asked


def _stepper(training: Training, world: World, ledger: Ledger) -> Stepper:
    engine = build(training, world)
    return Stepper(
        training=training,
        world=world,
        engine=engine,
        optimizer=adamw(training, engine.module),
        masks=masks(engine.module, torch.bfloat16 if training.bf16 else torch.float32),
        tally=Tally(),
        ledger=ledger,
    )


def _batches(training: Training, world: World, stream: Stream) -> Batches:
    return Batches(
        cursor=stream.shuffled(training.seed),
        counts=stream.counts,
        size=training.step_size(world.size),
        rows=training.per_device_train_batch_size,
        total=training.total_sequences(world.size, len(stream)),
        rank=world.rank,
        world=world.size,
    )


def _due(every: int | None, number: int) -> bool:
    return every is not None and number % every == 0


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Python's collector comes at any time, on one rank while the others wait for it; we call it ourselves."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
