"""The training loop, from resolved settings to the last checkpoint."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aboard.core.plan.training_settings import Training
from aboard.core.run.run_ledger import NOTHING_EARLIER, EarlierTime
from aboard.trainer.batch_plan import BatchPlanner
from aboard.trainer.checkpoint.manager import CheckpointManager
from aboard.trainer.distributed.communication_time import time_collective_waits
from aboard.trainer.distributed.rank_consensus import RankConsensus
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.learning_rate import compute_learning_rate
from aboard.trainer.metrics.head_beacon import set_first_step
from aboard.trainer.metrics.metrics_report import MetricsReporter
from aboard.trainer.metrics.step_statistics import StepStatistics
from aboard.trainer.metrics.time_ledger import TimeLedger
from aboard.trainer.model.attention_masks import build_masks
from aboard.trainer.model.build_model import build_engine
from aboard.trainer.model.compile_layers import time_compilations
from aboard.trainer.model.loss_scale import LossScale
from aboard.trainer.model.meta_model import DTYPES
from aboard.trainer.model.packing_support import build_packing_error
from aboard.trainer.optimizer.build_optimizer import build_optimizer
from aboard.trainer.periodic_actions import PeriodicActions
from aboard.trainer.prefetch import Prefetcher
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.step import BatchBuilder, PreparedStep, Stepper
from aboard.trainer.stop_requests import RequestListener, StopRequest
from aboard.trainer.training_data import TrainingData, open_training_data


def train(training: Training, context: RankContext, earlier: EarlierTime = NOTHING_EARLIER) -> StopRequest:
    """Trains to the end, or until all ranks agree to stop; returns the request that they acted on.

    `earlier` is what the run has spent before.
    """
    ledger = TimeLedger(earlier=earlier)
    folder = Path(training.output_dir)
    with MetricsReporter(training, main=context.main) as report, time_collective_waits(context, ledger):
        peers = RankConsensus(context)
        stream = open_training_data(training.data)
        fixed = training.torch_compile and stream.packed
        stepper = _build_stepper(training, context, ledger, fixed_length=fixed)
        if stream.packed and stepper.masks.why_not is not None:
            raise build_packing_error(stepper.masks.why_not)
        booked = partial(ledger.count_as, "checkpoint")
        checkpoints = CheckpointManager(folder, context, training, training.save_total_limit, spent=booked)
        progress = checkpoints.resume(stepper.engine, stepper.optimizer) or TrainingProgress()
        if stepper.loss_scale is not None and "loss_scale" in checkpoints.state:
            stepper.loss_scale.restore(checkpoints.state["loss_scale"])
        set_first_step(progress.step)
        report.begin(progress.step, peers, checkpoints.state)
        for note in (*stepper.engine.notes, *_describe_masks(stepper, stream), *checkpoints.notes):
            report.say(note)

        batches = _plan_batches(training, context, stream)
        steps = batches.steps(progress)
        actions = PeriodicActions(
            stepper=stepper,
            stream=stream,
            checkpoints=checkpoints,
            report=report,
            consensus=peers,
            start=progress,
            steps=steps,
        )
        make = BatchBuilder(
            read=stream.read,
            collate=stepper.masks.collate(
                (training.per_device_train_batch_size, training.max_length) if fixed else None
            ),
            device=context.device,
            dropout_seed=None if stepper.engine.dropout_keys is None else training.seed,
        )
        stop_request = StopRequest.NOTHING
        with (
            _pause_garbage_collection(),
            time_compilations(ledger),
            RequestListener(folder, peers) as requests,
            Prefetcher(iter(()) if actions.stops_early else batches.walk(progress), make) as ready_steps,
        ):
            report.announce_start(progress.step, steps)
            for ready in _rehearse_first(stepper, ready_steps):
                number, progress = ready.planned.number, ready.planned.after
                ledger.begin_step(number)
                rate = compute_learning_rate(training, number, steps)
                stepper(ready, rate)

                report.report_save(checkpoints.published)
                stop_request = requests.agree()
                last = number == steps
                ending = last or stop_request >= StopRequest.STOP
                logging = ending or _is_due(training.logging_steps, number)
                if logging:
                    requests.pace(actions.log(progress, rate))
                improved = (last or _is_due(training.eval_steps, number)) and actions.evaluate(progress)
                if actions.stops_early and not ending:
                    ending = True
                    if not logging:
                        actions.log(progress, rate)
                keep = improved and training.load_best_model_at_end
                if ending or keep or stop_request is StopRequest.SAVE or actions.is_save_due(number):
                    actions.save(progress, wait=ending)
                if ending:
                    break
                ledger.switch_to("data")
        with ledger.count_as("checkpoint"):
            checkpoints.close()
        actions.end(progress)
    return stop_request


def _build_stepper(training: Training, context: RankContext, ledger: TimeLedger, *, fixed_length: bool) -> Stepper:
    engine = build_engine(training, context, fixed_length=fixed_length)
    return Stepper(
        training=training,
        world=context,
        engine=engine,
        optimizer=build_optimizer(training, engine.module),
        masks=build_masks(
            engine.module,
            DTYPES[training.precision],
            context.device,
            chosen=training.attn_implementation != "auto",
        ),
        statistics=StepStatistics(),
        ledger=ledger,
        # Beside the gradients that it scales.
        loss_scale=LossScale(engine.parameters[0].device) if training.precision == "float16" else None,
    )


def _describe_masks(stepper: Stepper, stream: TrainingData) -> Iterator[str]:
    its = stepper.training
    cost = stepper.masks.describe_cost(its.per_device_train_batch_size, its.max_length) if stream.packed else None
    if cost is not None:
        yield cost


def _rehearse_first(stepper: Stepper, ready_steps: Iterable[PreparedStep]) -> Iterator[PreparedStep]:
    for place, ready in enumerate(ready_steps):
        if place == 0:
            stepper.rehearse(ready)
        yield ready


def _plan_batches(training: Training, context: RankContext, stream: TrainingData) -> BatchPlanner:
    return BatchPlanner(
        cursor=stream.shuffle_sources(training.seed),
        counts=stream.counts,
        size=training.step_size(context.size),
        rows=training.per_device_train_batch_size,
        total=training.total_sequences(context.size, len(stream)),
        rank=context.rank,
        world=context.size,
    )


def _is_due(every: int | None, number: int) -> bool:
    return every is not None and number % every == 0


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Python's collector runs at any time, on one rank while the others wait; the loop calls it itself."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
