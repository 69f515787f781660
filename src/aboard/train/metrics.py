"""What a log line says: computed from a window of steps and the time that they took, the same on every rank."""

import resource
from collections.abc import Mapping
from typing import Any

import torch

from aboard.train.communication import known
from aboard.train.ledger import Kind
from aboard.train.nonfinite import Window
from aboard.train.peaks import peak_flops
from aboard.train.peers import Peers
from aboard.train.progress import Progress

# Not part of a step: tokens per second are those of the steps.
_BESIDE: tuple[Kind, ...] = ("init", "checkpoint", "evaluation")


class Meter:
    """From one log line to the next."""

    def __init__(self, peers: Peers, *, flops_per_token: float, since: Progress) -> None:
        self._peers = peers
        self._flops = flops_per_token
        self._peak = peak_flops(peers.world.device)
        self._since = since

    def line(self, window: Window, progress: Progress, seconds: Mapping[Kind, float]) -> dict[str, Any]:
        """Every rank asks, since the loss is summed over all of them; seconds are means over ranks."""
        world = self._peers.world
        memory = [0.0] * world.size
        memory[world.rank] = peak_memory(world.device)
        loss, *sums = self._peers.sums([window.loss, *seconds.values(), *memory])
        spent: dict[Kind, float | None] = {kind: sums[place] / world.size for place, kind in enumerate(seconds)}
        working = max(1e-9, sum(sums[: len(seconds)]) / world.size - sum(spent[kind] or 0.0 for kind in _BESIDE))
        if not known(world):
            spent["communication"] = None
        rate = (progress.tokens - self._since.tokens) / working
        own = rate / world.size
        self._since = progress
        return {
            "loss": loss / window.supervised if window.supervised else None,
            "grad_norm": window.norm,
            "skipped": len(window.bad),
            "tokens": progress.tokens,
            "supervised": progress.supervised,
            "tokens_per_second": rate,
            "tokens_per_second_per_rank": own,
            "mfu": own * self._flops / self._peak if self._peak else None,
            "memory": max(sums[len(seconds) :]),
            "step_seconds": working / window.steps,
            "seconds": spent,
        }


def peak_memory(device: torch.device) -> float:
    """The most bytes that this rank has had: of the accelerator, or of the process where there is none."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
