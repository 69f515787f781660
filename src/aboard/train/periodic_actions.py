"""Periodic actions between steps: log line, evaluation, checkpoint."""

import gc

import torch

from aboard.core.run.training_metrics import StepTime
from aboard.train.batch_plan import BatchPlanner
from aboard.train.checkpoint.manager import CheckpointManager
from aboard.train.distributed.rank_consensus import RankConsensus
from aboard.train.metrics.log_metrics import MetricsMeter
from aboard.train.metrics.step_statistics import build_nonfinite_error, describe_nonfinite
from aboard.train.metrics_report import MetricsReporter
from aboard.train.prefetch import Prefetcher
from aboard.train.progress import TrainingProgress
from aboard.train.step import BatchBuilder, Stepper, forward_micro_batch
from aboard.train.training_data import TrainingData, open_training_data

# Steps between two garbage collections, at the same step on all ranks, so that none waits for another.
_COLLECT_EVERY = 50


class PeriodicActions:
    """Every rank calls the same actions at the same step: each is a collective."""

    def __init__(
        self,
        *,
        stepper: Stepper,
        stream: TrainingData,
        checkpoints: CheckpointManager,
        report: MetricsReporter,
        peers: RankConsensus,
        start: TrainingProgress,
        steps: int,
    ) -> None:
        self._stepper = stepper
        self._stream = stream
        self._validation = open_training_data(stepper.training.validation)
        self._checkpoints = checkpoints
        self._report = report
        self._peers = peers
        self._steps = steps
        self._meter = MetricsMeter(peers, flops_per_token=stepper.engine.flops_per_token, since=start)
        self._step_time = StepTime()
        self._collected = start.step

    def log(self, progress: TrainingProgress, learning_rate: float) -> float:
        """Waits for the device; reports non-finite steps; returns the seconds per step."""
        # An accelerator lags behind its queue: waiting for it is waiting for forwards and backwards.
        with self._stepper.ledger.count_as("forward_backward"):
            window = self._stepper.tally.read()
        line = self._meter.line(window, progress, self._stepper.ledger.take())
        position = {"steps": self._steps, "epoch": progress.index / len(self._stream), "learning_rate": learning_rate}
        self._step_time = self._step_time.after(line["step_seconds"], window.steps)
        left = (self._steps - progress.step) * self._step_time.seconds
        self._report.line({"step": progress.step, **position, **line, "eta": left})
        if window.bad:
            words = describe_nonfinite(window.bad, self._stream, self._peers)
            if self._stepper.training.on_nonfinite == "stop":
                raise build_nonfinite_error(words)
            self._report.say(f"skipped: {words}")
        for note in self._checkpoints.poll():
            self._report.say(note)
        if progress.step - self._collected >= _COLLECT_EVERY:
            self._collected = progress.step
            gc.collect()
        return float(line["step_seconds"])

    def evaluate(self, progress: TrainingProgress) -> None:
        if self._stepper.training.validation:
            with self._stepper.ledger.count_as("evaluation"):
                loss = evaluate_loss(self._stepper, self._validation, self._peers)
            self._report.line({"step": progress.step, "steps": self._steps, "eval_loss": loss})

    def save(self, progress: TrainingProgress, *, wait: bool) -> None:
        stepper = self._stepper
        with stepper.ledger.count_as("checkpoint"):
            wait = wait or not stepper.training.save_async
            self._checkpoints.save(stepper.engine, stepper.optimizer, progress, state=self._report.state, wait=wait)

    def end(self, progress: TrainingProgress) -> None:
        """The final line: the time ledger of this rank."""
        for note in self._checkpoints.poll():
            self._report.say(note)
        self._report.report_save(self._checkpoints.published)
        seconds, wall = self._stepper.ledger.total()
        self._report.line({"step": progress.step, "steps": self._steps, "wall": wall, "seconds": seconds})


def evaluate_loss(stepper: Stepper, stream: TrainingData, peers: RankConsensus) -> float:
    """All ranks run the same number of forwards, with empty ones if needed; the model's mode is restored."""
    world, engine = stepper.world, stepper.engine
    rows = stepper.training.per_device_eval_batch_size
    batches = BatchPlanner(
        cursor=stream.in_order(),
        counts=stream.counts,
        size=rows * world.size,
        rows=rows,
        total=len(stream),
        rank=world.rank,
        world=world.size,
    )
    make = BatchBuilder(read=stream.read, collate=stepper.masks.collate(), device=world.device)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    supervised = 0
    was_training = engine.model.training
    engine.model.eval()
    try:
        with torch.no_grad(), Prefetcher(batches.walk(TrainingProgress()), make) as steps:
            for ready in steps:
                supervised = ready.planned.after.supervised
                for micro in ready.micro:
                    total += forward_micro_batch(engine, stepper.masks, micro)
    finally:
        engine.model.train(was_training)
    return peers.sums([float(total)])[0] / max(1, supervised)
