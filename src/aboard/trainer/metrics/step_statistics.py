"""Statistics of the steps since the last log line, kept on the device, and the origin of non-finite steps."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from aboard.core.text.input_text import format_count
from aboard.diagnoses import AboardError, TrainerError
from aboard.lazy_dataclass import dataclass
from aboard.trainer.batch_plan import PlannedStep
from aboard.trainer.data.sampling.source_mixing import SequenceDraw
from aboard.trainer.diagnoses import training
from aboard.trainer.distributed.rank_consensus import RankConsensus
from aboard.trainer.training_data import TrainingData

# Sequences, and steps, named in one message.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class LogWindow:
    """The steps between two log lines; `loss` is the sum over this rank's tokens in finite steps."""

    steps: int
    loss: float
    supervised: int
    norm: float
    bad: tuple["NonFiniteStep", ...]


@dataclass(frozen=True, kw_only=True)
class NonFiniteStep:
    """A step with a non-finite gradient, and this rank's sequences with a non-finite loss."""

    step: int
    bins: tuple[SequenceDraw, ...]


class StepStatistics:
    """Losses of micro-batches and norms of steps stay on the device until they are read."""

    def __init__(self) -> None:
        self._steps: list[tuple[PlannedStep, Tensor]] = []

    def add(self, planned: PlannedStep, losses: Sequence[Tensor], norm: Tensor) -> None:
        self._steps.append((planned, torch.stack((norm, *losses))))

    def read(self) -> LogWindow:
        """The only wait for the device."""
        numbers: list[float] = torch.cat([numbers for _, numbers in self._steps]).tolist()
        loss, supervised, norm, at = 0.0, 0, 0.0, 0
        bad: list[NonFiniteStep] = []
        for planned, _ in self._steps:
            norm, *losses = numbers[at : at + 1 + len(planned.micro)]
            at += 1 + len(losses)
            if isfinite(norm):
                loss += sum(losses)
                supervised += planned.supervised
            else:
                bad.append(NonFiniteStep(step=planned.number, bins=_find_nonfinite_bins(planned, losses)))
        window = LogWindow(steps=len(self._steps), loss=loss, supervised=supervised, norm=norm, bad=tuple(bad))
        self._steps.clear()
        return window


def _find_nonfinite_bins(planned: PlannedStep, losses: Sequence[float]) -> tuple[SequenceDraw, ...]:
    pairs = zip(planned.micro, losses, strict=True)
    return tuple(draw for draws, loss in pairs if not isfinite(loss) for draw in draws)


def describe_nonfinite(bad: Sequence[NonFiniteStep], stream: TrainingData, consensus: RankConsensus) -> str:
    """Describes where it came from; the same on every rank, each of which must call it."""
    bins_by_rank = consensus.words([_format_bins(each, stream) for each in bad])
    words = []
    for place, each in enumerate(bad[:_NAMED]):
        blamed = [f"rank {rank} in {bins[place]}" for rank, bins in enumerate(bins_by_rank) if bins[place]]
        words.append(
            f"step {each.step}: the loss is not finite on {'; '.join(blamed[:_NAMED])}"
            if blamed
            else f"step {each.step}: the gradient is not finite, though every loss is"
        )
    more = f" (and {format_count(len(bad) - _NAMED, 'more step')})" if len(bad) > _NAMED else ""
    return "; ".join(words) + more


def separate_overflows(
    bad: Sequence[NonFiniteStep], consensus: RankConsensus
) -> tuple[list[NonFiniteStep], list[NonFiniteStep]]:
    """Steps in which a loss is not finite on any rank, and those in which only the scaled gradient overflowed."""
    if not bad:
        return [], []
    losses = consensus.sums([float(len(each.bins)) for each in bad])
    pairs = list(zip(bad, losses, strict=True))
    return [each for each, count in pairs if count], [each for each, count in pairs if not count]


def build_scale_error(scale: float, overflowed: Sequence[NonFiniteStep]) -> AboardError:
    steps = f" Since the last log line, {format_count(len(overflowed), 'step')} overflowed" if overflowed else ""
    last = f", the last one at step {overflowed[-1].step}, though every loss is finite" if overflowed else ""
    return TrainerError(training.LOSS_SCALE, f"the loss scale fell to {scale:g}.{steps}{last}")


def build_nonfinite_error(words: str) -> AboardError:
    return TrainerError(training.NONFINITE, f"{words}. These steps were not applied to the weights")


def _format_bins(step: NonFiniteStep, stream: TrainingData) -> str:
    """The sequences with file and line of their first document."""
    bins = [f"sequence {draw.bin} of {draw.source} ({stream.where(draw)})" for draw in step.bins[:_NAMED]]
    more = [f"{len(step.bins) - _NAMED} more"] if len(step.bins) > _NAMED else []
    return ", ".join(bins + more)
