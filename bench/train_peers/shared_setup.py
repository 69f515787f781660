"""The input of every trainer: the same model, rows, batch and optimizer, and a clock that records its steps."""

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

FOLDER = Path(os.environ["BENCH_FOLDER"])
BATCH = int(os.environ["BENCH_BATCH"])
LAYOUT = os.environ["BENCH_LAYOUT"]
# LoRA's settings, as JSON; empty to train all weights.
ADAPTER = json.loads(os.environ["BENCH_ADAPTER"] or "null")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LEARNING_RATE, BETAS, EPSILON, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.0, 1.0
LOG_STEPS = 10
# Never reached: the bench kills the trainers.
STEPS = 1_000_000


def load_model() -> Any:
    net = AutoModelForCausalLM.from_pretrained(FOLDER / "model", attn_implementation="sdpa", dtype=torch.float32)
    if ADAPTER is None:
        return net
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - seconds that only LoRA needs

    lora = LoraConfig(
        r=ADAPTER["r"],
        lora_alpha=ADAPTER["alpha"],
        lora_dropout=ADAPTER["dropout"],
        target_modules=ADAPTER["target_modules"],
        task_type="CAUSAL_LM",
    )
    return inject_adapter_in_model(lora, net)


def load_rows() -> torch.Tensor:
    return torch.from_numpy(np.load(FOLDER / "rows.npy"))


def list_batches() -> Iterator[torch.Tensor]:
    """Endless full batches of this rank."""
    mine = load_rows()[RANK::WORLD]
    while True:
        for start in range(0, len(mine) - BATCH + 1, BATCH):
            yield mine[start : start + BATCH]


def fused_adamw(parameters: Any) -> torch.optim.Optimizer:
    trained = [each for each in parameters if each.requires_grad]
    return torch.optim.AdamW(trained, LEARNING_RATE, BETAS, EPSILON, DECAY, fused=True)


class Clock:
    """Records the time of each step of rank 0 in shared memory: a few microseconds per step, no system call."""

    def __init__(self) -> None:
        self._steps = 0
        self._shared: mmap.mmap | None = None
        if RANK == 0:
            with Path(os.environ["BENCH_CLOCK"]).open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), 0)

    def step(self) -> None:
        if self._shared is None:
            return
        self._steps += 1
        at = 8 * (1 + self._steps % (len(self._shared) // 8 - 1))
        self._shared[at : at + 8] = monotonic_ns().to_bytes(8, "little")
        self._shared[:8] = self._steps.to_bytes(8, "little")


def require_layout(net: torch.nn.Module) -> None:
    """Exits unless the layout is as requested: FSDP2's parameters are DTensors, others' are not."""
    sharded = any(isinstance(parameter, DTensor) for parameter in net.parameters())
    if sharded != (LAYOUT == "full"):
        raise SystemExit(f"requested layout {LAYOUT}, but the parameters are {'' if sharded else 'not '}sharded")
