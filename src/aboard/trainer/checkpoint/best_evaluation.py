"""The best evaluation so far, kept in each checkpoint: names the best checkpoint and decides early stopping."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from math import inf, isfinite
from typing import Any

from aboard.core.decoding import try_decode
from aboard.lazy_dataclass import dataclass

# The key in a checkpoint's state.
_KEY = "evaluation"


@dataclass(frozen=True, kw_only=True)
class BestEvaluation:
    """The lowest eval_loss and its step; `kept` says whether the checkpoint of that step is kept as the best.

    `stale` counts evaluations since the last improvement of more than the threshold. `data` identifies the validation
    set: losses on another one can't be compared.
    """

    step: int | None = None
    loss: float | None = None
    kept: bool = False
    stale: int = 0
    data: str = ""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "BestEvaluation":
        """From a checkpoint's state; without one in it, there was no evaluation yet."""
        found = try_decode(cls, state.get(_KEY))
        return cls() if found is None or (found.step is None) != (found.loss is None) else found

    def content(self) -> dict[str, Any]:
        return {_KEY: asdict(self)}

    def after(self, step: int, loss: float, *, threshold: float, keep: bool) -> "BestEvaluation":
        """As in HF: every lower loss is the new best, but only a clear one restarts the count."""
        least = inf if self.loss is None else self.loss
        stale = 0 if loss < least - threshold else self.stale + 1
        if isfinite(loss) and loss < least:
            return replace(self, step=step, loss=loss, kept=keep, stale=stale)
        return replace(self, stale=stale)

    def has_run_out(self, patience: int | None) -> bool:
        return patience is not None and self.stale >= patience

    def __str__(self) -> str:
        return "none is finite" if self.loss is None else f"step {self.step:,}, eval loss {self.loss:.4f}"


def get_wanted_best(training: Mapping[str, Any], state: Mapping[str, Any]) -> BestEvaluation | None:
    """The evaluation whose checkpoint this training run wants in the end; None if it doesn't, or if there was none."""
    best = BestEvaluation.of(state)
    return best if training.get("load_best_model_at_end") is True and best.kept else None


def find_best_checkpoint(best: BestEvaluation, serials: Mapping[str, int]) -> str | None:
    """Its name among checkpoints with these serials: the newest of its step."""
    name = f"step-{best.step:06d}"
    found = [each for each in serials if each == name or each.startswith(f"{name}-")]
    return max(found, key=lambda each: serials[each], default=None)
