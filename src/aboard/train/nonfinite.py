"""What the steps since the last log line came to, kept on the device, and who made one that isn't finite."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from aboard.core.words import many
from aboard.data.feed.mix import Draw
from aboard.diagnoses import AboardError, training
from aboard.lazy import dataclass
from aboard.train.batches import Planned
from aboard.train.peers import Peers
from aboard.train.stream import Stream

# Bins, and steps, that are named in one message.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steps between two log lines; `loss` is the sum over this rank's tokens, of those steps that were finite."""

    steps: int
    loss: float
    supervised: int
    norm: float
    bad: tuple["Bad", ...]


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A step whose gradient wasn't finite, and those of this rank's bins whose loss wasn't."""

    step: int
    bins: tuple[Draw, ...]


class Tally:
    """Losses of micro-batches and norms of steps stay on the device until someone reads them."""

    def __init__(self) -> None:
        self._steps: list[tuple[Planned, Tensor]] = []

    def add(self, planned: Planned, losses: Sequence[Tensor], norm: Tensor) -> None:
        self._steps.append((planned, torch.stack((norm, *losses))))

    def read(self) -> Window:
        """The one wait for the device."""
        numbers: list[float] = torch.cat([numbers for _, numbers in self._steps]).tolist()
        loss, supervised, norm, at = 0.0, 0, 0.0, 0
        bad: list[Bad] = []
        for planned, _ in self._steps:
            norm, *losses = numbers[at : at + 1 + len(planned.micro)]
            at += 1 + len(losses)
            if isfinite(norm):
                loss += sum(losses)
                supervised += planned.supervised
            else:
                bad.append(Bad(step=planned.number, bins=_broken(planned, losses)))
        window = Window(steps=len(self._steps), loss=loss, supervised=supervised, norm=norm, bad=tuple(bad))
        self._steps.clear()
        return window


def _broken(planned: Planned, losses: Sequence[float]) -> tuple[Draw, ...]:
    pairs = zip(planned.micro, losses, strict=True)
    return tuple(draw for draws, loss in pairs if not isfinite(loss) for draw in draws)


def named(bad: Sequence[Bad], stream: Stream, peers: Peers) -> str:
    """In words, where it came from; the same on every rank, each of which must ask."""
    told = peers.words([_words(each, stream) for each in bad])
    words = []
    for place, each in enumerate(bad[:_NAMED]):
        blamed = [f"rank {rank} in {told[rank][place]}" for rank in range(len(told)) if told[rank][place]]
        words.append(
            f"step {each.step}: the loss is not finite on {'; '.join(blamed[:_NAMED])}"
            if blamed
            else f"step {each.step}: the gradient is not finite, though every loss is"
        )
    more = f" (and {many(len(bad) - _NAMED, 'more step')})" if len(bad) > _NAMED else ""
    return "; ".join(words) + more


def stopped(words: str) -> AboardError:
    return AboardError(training.NONFINITE, f"{words}. No such step was applied to the weights")


def _words(bad: Bad, stream: Stream) -> str:
    """The bins with the file and line of their first document."""
    found = [f"bin {draw.bin} of {draw.source} ({stream.where(draw)})" for draw in bad.bins[:_NAMED]]
    more = [f"{len(bad.bins) - _NAMED} more"] if len(bad.bins) > _NAMED else []
    return ", ".join(found + more)
