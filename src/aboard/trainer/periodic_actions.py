"""Periodic actions between steps: log line, evaluation, checkpoint."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aboard.core.plan.training_settings import Training
from aboard.core.run.training_metrics import StepTime, TypicalStep
from aboard.trainer.batch_plan import BatchPlanner
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation
from aboard.trainer.checkpoint.manager import CheckpointManager
from aboard.trainer.data.sampling.packed_sequences import compute_data_identity
from aboard.trainer.distributed.rank_consensus import RankConsensus
from aboard.trainer.metrics.log_metrics import MetricsMeter
from aboard.trainer.metrics.metrics_report import MetricsReporter
from aboard.trainer.metrics.step_statistics import (
    NonFiniteStep,
    build_nonfinite_error,
    build_scale_error,
    describe_nonfinite,
    separate_overflows,
)
from aboard.trainer.model.loss_scale import LOWEST
from aboard.trainer.prefetch import Prefetcher
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.save_schedule import SaveSchedule
from aboard.trainer.step import BatchBuilder, Stepper, forward_micro_batch
from aboard.trainer.training_data import TrainingData, open_training_data

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
        consensus: RankConsensus,
        start: TrainingProgress,
        steps: int,
    ) -> None:
        self._stepper = stepper
        self._stream = stream
        self._validation = open_training_data(stepper.training.validation)
        self._checkpoints = checkpoints
        self._report = report
        self._consensus = consensus
        self._steps = steps
        self._meter = MetricsMeter(consensus, flops_per_token=stepper.engine.flops_per_token, since=start)
        self._step_time = StepTime()
        self._typical_step = TypicalStep()
        self._schedule = SaveSchedule(
            stepper.training.save_steps, consensus.world, checkpoints, stepper.ledger, start=start.step
        )
        earlier = stepper.ledger.earlier
        self._first = start.step if earlier.first is None else earlier.first
        self._collected = start.step
        self._best, note = resume_best_evaluation(stepper.training, checkpoints.state)
        if note is not None:
            report.say(note)

    @property
    def stops_early(self) -> bool:
        """Whether the last evaluations have used up the patience; the same on all ranks, as their loss is."""
        return self._best.has_run_out(self._stepper.training.early_stopping_patience)

    def log(self, progress: TrainingProgress, learning_rate: float) -> float:
        """Waits for the device; reports non-finite steps; returns the seconds per step."""
        # An accelerator lags behind its queue: waiting for it is waiting for forwards and backwards.
        with self._stepper.ledger.count_as("forward_backward"):
            window = self._stepper.statistics.read()
            scale = None if self._stepper.loss_scale is None else self._stepper.loss_scale.value.item()
        line, told = self._meter.line(window, progress, self._stepper.ledger.take(), self._schedule.decide())
        if scale is not None:
            line["loss_scale"] = scale
        if self._stepper.training.torch_compile:
            ledger = self._stepper.ledger
            line |= {"compilations": ledger.compilations, "recompilations": ledger.recompilations}
        position = {"steps": self._steps, "epoch": progress.index / len(self._stream), "learning_rate": learning_rate}
        self._step_time = self._step_time.after(line["step_seconds"], window.steps)
        left = (self._steps - progress.step) * self._step_time.seconds
        self._typical_step.add(line["step_seconds"], window.steps)
        line |= self._schedule.apply_decision(told, self._typical_step.seconds or line["step_seconds"])
        self._report.line({"step": progress.step, **position, **line, "eta": left, **self._measure_goodput(progress)})
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
            bad, overflowed = separate_overflows(bad, self._consensus)
            if scale < LOWEST:
                raise build_scale_error(scale, overflowed)
        if bad:
            words = describe_nonfinite(bad, self._stream, self._consensus)
            if self._stepper.training.on_nonfinite == "stop":
                raise build_nonfinite_error(words)
            self._report.say(f"skipped: {words}")

    def evaluate(self, progress: TrainingProgress) -> bool:
        """Whether it is the best evaluation so far."""
        training = self._stepper.training
        if not training.validation:
            return False
        with self._stepper.ledger.count_as("evaluation"):
            loss = evaluate_loss(self._stepper, self._validation, self._consensus)
        self._best = self._best.after(
            progress.step, loss, threshold=training.early_stopping_threshold, keep=training.load_best_model_at_end
        )
        best = {"best_eval_loss": self._best.loss, "best_step": self._best.step}
        self._report.line({"step": progress.step, "steps": self._steps, "eval_loss": loss, **best})
        return self._best.step == progress.step

    def is_save_due(self, step: int) -> bool:
        """Whether the interval has passed, at the same step on all ranks."""
        return self._schedule.is_due(step)

    def save(self, progress: TrainingProgress, *, wait: bool) -> None:
        stepper = self._stepper
        if self._schedule.note and not wait:
            self._report.say(f"saving step {progress.step:,}{self._schedule.note}")
        self._schedule.add_save(progress.step)
        with stepper.ledger.count_as("checkpoint"):
            wait = wait or not stepper.training.save_async
            state = {**self._best.content(), **self._report.state, **self._schedule.state}
            if stepper.loss_scale is not None:
                state["loss_scale"] = stepper.loss_scale.content()
            self._checkpoints.save(stepper.engine, stepper.optimizer, progress, state=state, wait=wait)

    def end(self, progress: TrainingProgress) -> None:
        """The final lines: why it ended early, the best evaluation, the time ledger of this rank."""
        training = self._stepper.training
        for note in self._checkpoints.poll():
            self._report.say(note)
        if self.stops_early and progress.step < self._steps:
            count = f"{self._best.stale} evaluation{'s' if self._best.stale > 1 else ''}"
            self._report.say(f"stopped early at step {progress.step}: {count} without improvement; best: {self._best}")
        elif self._best.step is not None:
            self._report.say(f"best evaluation: {self._best}")
        if training.load_best_model_at_end and self._best.kept:
            self._report.say(f"`aboard export` exports the checkpoint of step {self._best.step:,}, the best one")
        self._report.report_save(self._checkpoints.published)
        seconds, wall = self._stepper.ledger.total()
        total = {"wall": wall, **self._measure_goodput(progress), "seconds": seconds}
        self._report.line({"step": progress.step, "steps": self._steps, **total})

    def _measure_goodput(self, progress: TrainingProgress) -> dict[str, float | None]:
        """Committed steps × the time of an undisturbed step ÷ the wall time of all generations, and that time."""
        wall, seconds = self._stepper.ledger.total()[1], self._typical_step.seconds
        goodput = None if seconds is None or wall <= 0 else (progress.step - self._first) * seconds / wall
        return {"goodput": goodput, "typical_step_seconds": seconds}


def resume_best_evaluation(training: Training, state: Mapping[str, Any]) -> tuple[BestEvaluation, str | None]:
    """The best evaluation of the resumed checkpoint, and a note if it no longer counts."""
    data = compute_data_identity(training.validation) if training.validation else ""
    found = BestEvaluation.of(state)
    if found.data != data:
        note = f"the validation set has changed: {found} no longer counts as the best evaluation"
        return BestEvaluation(data=data), note if found.step is not None else None
    elsewhere = training.resume not in ("auto", "none") and Path(training.resume).parent != Path(training.output_dir)
    if found.step is not None and training.load_best_model_at_end and (elsewhere or not found.kept):
        why = f"its checkpoint is not in {training.output_dir}" if found.kept else "its checkpoint was not kept"
        note = f"the best evaluation so far ({found}) is not used: {why}"
        return replace(found, step=None, loss=None, kept=False), note
    return found, None


def evaluate_loss(stepper: Stepper, stream: TrainingData, consensus: RankConsensus) -> float:
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
    return consensus.sums([float(total)])[0] / max(1, supervised)
