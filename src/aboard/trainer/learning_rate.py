"""The learning rate as a pure function of the step, so that resume needs only the step number."""

from collections.abc import Callable
from math import ceil, cos, pi, sqrt

from aboard.core.plan.training_settings import Training


def compute_learning_rate(training: Training, step: int, steps: int) -> float:
    """For step `step` of 1 to `steps`: one optimizer step is one step of the schedule, on any number of ranks."""
    peak, floor = training.learning_rate, training.learning_rate * training.min_lr_ratio
    warmup = count_warmup_steps(training, steps)
    if step <= warmup:
        # HF starts from 0, and wastes the first step.
        return peak * step / warmup
    shape = _SHAPES[training.lr_scheduler_type]
    return floor + (peak - floor) * shape(training, step - warmup - 1, warmup, steps)


def count_warmup_steps(training: Training, steps: int) -> int:
    """`warmup_steps` takes precedence over `warmup_ratio`, as in HF."""
    return training.warmup_steps or ceil(training.warmup_ratio * steps)


# The remaining factor, from 1 to 0, `done` steps after the warmup. The shapes are those of transformers.
_Shape = Callable[[Training, int, int, int], float]


def _decay_inverse_sqrt(_training: Training, done: int, warmup: int, _steps: int) -> float:
    """Independent of the length of the training; without a warmup, transformers' timescale of 10,000 steps."""
    timescale = warmup or 10_000
    return sqrt(timescale / (timescale + done))


def _decay_wsd(training: Training, done: int, warmup: int, steps: int) -> float:
    """Warmup, stable, decay (Hu et al., MiniCPM, 2024): constant, then down to the floor over the last part."""
    return min(1.0, (steps - warmup - done) / max(1, ceil(training.decay_ratio * steps)))


_SHAPES: dict[str, _Shape] = {
    "cosine": lambda _, done, warmup, steps: 0.5 * (1 + cos(pi * min(1.0, done / (steps - warmup)))),
    "cosine_with_restarts": lambda training, done, warmup, steps: (
        0.5 * (1 + cos(pi * (training.num_cycles * done / (steps - warmup) % 1.0)))
    ),
    "linear": lambda _, done, warmup, steps: max(0.0, 1 - done / (steps - warmup)),
    "polynomial": lambda training, done, warmup, steps: max(0.0, 1 - done / (steps - warmup)) ** training.power,
    "inverse_sqrt": _decay_inverse_sqrt,
    "constant": lambda *_: 1.0,
    "wsd": _decay_wsd,
}
