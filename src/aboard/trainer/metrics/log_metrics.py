"""The metrics of a log line: computed from a window of steps and their time, the same on every rank."""

import resource
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from aboard.trainer.distributed.communication_time import is_communication_visible
from aboard.trainer.distributed.rank_consensus import RankConsensus
from aboard.trainer.metrics.step_statistics import LogWindow
from aboard.trainer.metrics.time_ledger import TimeKind
from aboard.trainer.progress import TrainingProgress

# Not part of a step: tokens per second count steps only.
_BESIDE: tuple[TimeKind, ...] = ("loading", "compile", "checkpoint", "evaluation")


class MetricsMeter:
    """Measures from one log line to the next."""

    def __init__(self, consensus: RankConsensus, *, flops_per_token: float, since: TrainingProgress) -> None:
        self._consensus = consensus
        self._flops = flops_per_token
        self._peak = find_peak_flops(consensus.world.device)
        self._since = since

    def line(
        self, window: LogWindow, progress: TrainingProgress, seconds: Mapping[TimeKind, float], told: Sequence[float]
    ) -> tuple[dict[str, Any], list[float]]:
        """Every rank must call it, since the loss is summed over all; seconds are means over ranks.

        The second value has the sums of what ranks `told`.
        """
        world = self._consensus.world
        memory = [0.0] * world.size
        memory[world.rank] = read_peak_memory(world.device)
        loss, *sums = self._consensus.sums([window.loss, *seconds.values(), *memory, *told])
        spent: dict[TimeKind, float | None] = {kind: sums[place] / world.size for place, kind in enumerate(seconds)}
        working = max(1e-9, sum(sums[: len(seconds)]) / world.size - sum(spent[kind] or 0.0 for kind in _BESIDE))
        if not is_communication_visible(world):
            spent["communication"] = None
        rate = (progress.tokens - self._since.tokens) / working
        own = rate / world.size
        self._since = progress
        line = {
            "loss": loss / window.supervised if window.supervised else None,
            "grad_norm": window.norm,
            "skipped": len(window.bad),
            "tokens": progress.tokens,
            "supervised": progress.supervised,
            "tokens_per_second": rate,
            "tokens_per_second_per_rank": own,
            "mfu": own * self._flops / self._peak if self._peak else None,
            "memory": max(sums[len(seconds) : len(seconds) + world.size]),
            "step_seconds": working / window.steps,
            "seconds": spent,
        }
        return line, sums[len(seconds) + world.size :]


def read_peak_memory(device: torch.device) -> float:
    """The peak memory of this rank: of the accelerator, or of the process if there is none."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


# The first name contained in the device's name counts, so longer names come first.
PEAKS = (
    ("GB300", 2.5e15),
    ("B300", 2.5e15),
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("GH200", 989e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("V100-PCIE", 112e12),
    ("V100", 125e12),
    ("Tesla T4", 65e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("A6000", 154.8e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("RTX 5090", 209.5e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090", 71e12),
    ("MI355X", 2.5e15),
    ("MI325X", 1307e12),
    ("MI300X", 1307e12),
    ("MI250X", 383e12),
)


def find_peak_flops(device: torch.device) -> float | None:
    """Peak FLOPS of one device; None if unknown, so that no utilization is reported."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS if part in name), None)
