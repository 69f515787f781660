"""What happens now and then between steps: a log line, an evaluation, a checkpoint."""

import gc

import torch

from aboard.core.metrics import StepTime
from aboard.train.batches import Batches
from aboard.train.checkpoints import Checkpoints
from aboard.train.metrics import Meter
from aboard.train.nonfinite import named, stopped
from aboard.train.peers import Peers
from aboard.train.prefetch import Ahead
from aboard.train.progress import Progress
from aboard.train.report import Report
from aboard.train.step import Maker, Stepper, forward
from aboard.train.stream import Stream, opened

# Steps between two collections of garbage, at the same step on all ranks, so that none waits for another.
_COLLECT = 50


class Between:
    """Every rank calls the same at the same step: each of them is a collective."""

    def __init__(
        self,
        *,
        stepper: Stepper,
        stream: Stream,
        checkpoints: Checkpoints,
        report: Report,
        peers: Peers,
        start: Progress,
        steps: int,
    ) -> None:
        self._stepper = stepper
        self._stream = stream
        self._validation = opened(stepper.training.validation)
        self._checkpoints = checkpoints
        self._report = report
        self._peers = peers
        self._steps = steps
        self._meter = Meter(peers, flops_per_token=stepper.engine.flops_per_token, since=start)
        self._step_time = StepTime()
        self._collected = start.step

    def log(self, progress: Progress, learning_rate: float) -> float:
        """Waits for the device; names a step that isn't finite; returns what a step takes, in seconds."""
        # An accelerator is behind with what it was asked for: to wait for it is to wait for forwards and backwards.
        with self._stepper.ledger.spent("forward_backward"):
            window = self._stepper.tally.read()
        line = self._meter.line(window, progress, self._stepper.ledger.take())
        position = {"steps": self._steps, "epoch": progress.index / len(self._stream), "learning_rate": learning_rate}
        self._step_time = self._step_time.after(line["step_seconds"], window.steps)
        left = (self._steps - progress.step) * self._step_time.seconds
        self._report.line({"step": progress.step, **position, **line, "eta": left})
        if window.bad:
            words = named(window.bad, self._stream, self._peers)
            if self._stepper.training.on_nonfinite == "stop":
                raise stopped(words)
            self._report.say(f"left out: {words}")
        for note in self._checkpoints.poll():
            self._report.say(note)
        if progress.step - self._collected >= _COLLECT:
            self._collected = progress.step
            gc.collect()
        return float(line["step_seconds"])

    def evaluate(self, progress: Progress) -> None:
        if self._stepper.training.validation:
            with self._stepper.ledger.spent("evaluation"):
                loss = evaluate(self._stepper, self._validation, self._peers)
            self._report.line({"step": progress.step, "steps": self._steps, "eval_loss": loss})

    def save(self, progress: Progress, *, wait: bool) -> None:
        stepper = self._stepper
        with stepper.ledger.spent("checkpoint"):
            wait = wait or not stepper.training.save_async
            self._checkpoints.save(stepper.engine, stepper.optimizer, progress, wait=wait)

    def end(self, progress: Progress) -> None:
        """The last word: where all of this rank's time went."""
        for note in self._checkpoints.poll():
            self._report.say(note)
        self._report.saved(self._checkpoints.published)
        seconds, wall = self._stepper.ledger.total()
        self._report.line({"step": progress.step, "steps": self._steps, "wall": wall, "seconds": seconds})


def evaluate(stepper: Stepper, stream: Stream, peers: Peers) -> float:
    """All ranks run as many forwards, those without bins an empty one; the model's mode is left as it was."""
    world, engine = stepper.world, stepper.engine
    rows = stepper.training.per_device_eval_batch_size
    batches = Batches(
        cursor=stream.in_order(),
        counts=stream.counts,
        size=rows * world.size,
        rows=rows,
        total=len(stream),
        rank=world.rank,
        world=world.size,
    )
    make = Maker(read=stream.read, collate=stepper.masks.collate(), device=world.device)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    supervised = 0
    was = engine.model.training
    engine.model.eval()
    try:
        with torch.no_grad(), Ahead(batches.walk(Progress()), make) as steps:
            for ready in steps:
                supervised = ready.planned.after.supervised
                for micro in ready.micro:
                    total += forward(engine, stepper.masks, micro)
    finally:
        engine.model.train(was)
    return peers.sums([float(total)])[0] / max(1, supervised)
