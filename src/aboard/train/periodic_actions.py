"""Periodic actions between steps: log line, evaluation, checkpoint."""

import gc
from collections.abc import Sequence

import torch

from aboard.core.run.training_metrics import StepTime
from aboard.train.batch_plan import BatchPlanner
from aboard.train.checkpoint.manager import CheckpointManager
from aboard.train.distributed.rank_consensus import RankConsensus
from aboard.train.metrics.log_metrics import MetricsMeter
from aboard.train.metrics.step_statistics import (
    NonFiniteStep,
    build_nonfinite_error,
    build_scale_error,
    describe_nonfinite,
    separate_overflows,
)
from aboard.train.metrics_report import MetricsReporter
from aboard.train.model.loss_scale import LOWEST
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
            scale = None if self._stepper.loss_scale is None else self._stepper.loss_scale.value.item()
        line = self._meter.line(window, progress, self._stepper.ledger.take())
        if scale is not None:
            line["loss_scale"] = scale
        if self._stepper.training.torch_compile:
            ledger = self._stepper.ledger
            line |= {"compilations": ledger.compilations, "recompilations": ledger.recompilations}
        position = {"steps": self._steps, "epoch": progress.index / len(self._stream), "learning_rate": learning_rate}
        self._step_time = self._step_time.after(line["step_seconds"], window.steps)
        left = (self._steps - progress.step) * self._step_time.seconds
        self._report.line({"step": progress.step, **position, **line, "eta": left})
        self._judge_nonfinite(window.bad, scale)
        for note in self._checkpoints.poll():
            self._report.say(note)
        if progress.step - self._collected >= _COLLECT_EVERY:
            self._collected = progress.step
            gc.collect()
        return float(line["step_seconds"])

    def _judge_nonfinite(self, bad: Sequence[NonFiniteStep], scale: float | None) -> None:
        if scale is not None:
            # A gradient that overflows is how fp16 finds its scale. A loss that does is computed before any scaling.
            bad, overflowed = separate_overflows(bad, self._peers)
            if scale < LOWEST:
                raise build_scale_error(scale, overflowed)
        if bad:
            words = describe_nonfinite(bad, self._stream, self._peers)
            if self._stepper.training.on_nonfinite == "stop":
                raise build_nonfinite_error(words)
            self._report.say(f"skipped: {words}")

    def evaluate(self, progress: TrainingProgress) -> None:
        if self._stepper.training.validation:
            with self._stepper.ledger.count_as("evaluation"):
                loss = evaluate_loss(self._stepper, self._validation, self._peers)
            self._report.line({"step": progress.step, "steps": self._steps, "eval_loss": loss})

    def save(self, progress: TrainingProgress, *, wait: bool) -> None:
        stepper = self._stepper
        with stepper.ledger.count_as("checkpoint"):
            wait = wait or not stepper.training.save_async
            state = {} if stepper.loss_scale is None else {"loss_scale": stepper.loss_scale.content()}
            self._checkpoints.save(stepper.engine, stepper.optimizer, progress, state=state, wait=wait)

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
