"""The dynamic loss scale of fp16: small gradients would vanish in float16, so the loss is scaled up before backward."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# As torch.amp.GradScaler: it starts high, and the first steps that overflow bring it down to what the model allows.
START = 65536.0
GROWTH, BACKOFF = 2.0, 0.5
GOOD_STEPS = 2000
# Below this the scale would make gradients smaller than they are: no scale helps.
LOWEST = 1.0


class LossScale:
    """The scale and the steps since its last change, both on the device; the same on every rank."""

    def __init__(self, device: torch.device) -> None:
        self.value = torch.tensor(START, device=device)
        self._good = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, norm: Tensor) -> None:
        """Halves the scale after a step whose gradient overflowed, and doubles it after many that did not."""
        overflowed = (~torch.isfinite(norm)).float()
        torch._amp_update_scale_(self.value, self._good, overflowed, GROWTH, BACKOFF, GOOD_STEPS)

    def content(self) -> dict[str, float]:
        """For a checkpoint; waits for the device."""
        return {"value": self.value.item(), "good_steps": int(self._good.item())}

    def restore(self, content: Mapping[str, Any]) -> None:
        self.value.fill_(float(content["value"]))
        self._good.fill_(int(content["good_steps"]))
