"""The learning rate as a pure function of the step, so that resume needs only the step number."""

from collections.abc import Callable
from math import ceil, cos, pi

from aboard.core.plan.training_settings import Training


def compute_learning_rate(training: Training, step: int, steps: int) -> float:
    """For step `step` of 1 to `steps`: one optimizer step is one step of the schedule, on any number of ranks."""
    peak, floor = training.learning_rate, training.learning_rate * training.min_lr_ratio
    warmup = count_warmup_steps(training, steps)
    if step <= warmup:
        # HF starts from 0, and wastes the first step.
        return peak * step / warmup
    shape = _SHAPES[training.lr_scheduler_type]
    return floor + (peak - floor) * shape(step - warmup - 1, steps - warmup, ceil(training.decay_ratio * steps))


def count_warmup_steps(training: Training, steps: int) -> int:
    """`warmup_steps` takes precedence over `warmup_ratio`, as in HF."""
    return training.warmup_steps or ceil(training.warmup_ratio * steps)


# The remaining factor, from 1 to 0, `done` of `steps` steps after the warmup; `decay` is for wsd.
_Shape = Callable[[int, int, int], float]


def _decay_cosine(done: int, steps: int, _decay: int) -> float:
    return 0.5 * (1 + cos(pi * min(1.0, done / steps)))


def _decay_linear(done: int, steps: int, _decay: int) -> float:
    return max(0.0, 1 - done / steps)


def _keep_constant(_done: int, _steps: int, _decay: int) -> float:
    return 1.0


def _decay_wsd(done: int, steps: int, decay: int) -> float:
    """Warmup, stable, decay (Hu et al., MiniCPM, 2024): constant, then down to the floor over the last part."""
    return min(1.0, (steps - done) / max(1, decay))


_SHAPES: dict[str, _Shape] = {
    "cosine": _decay_cosine,
    "linear": _decay_linear,
    "constant": _keep_constant,
    "wsd": _decay_wsd,
}
