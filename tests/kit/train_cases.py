"""Jobs of ranks for tests of the training loop."""

import json
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import torch
from tiny import VOCABULARY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from train_waits import Waits

from aboard.core.plan.training_settings import Training
from aboard.core.run.recovery import save_interval
from aboard.core.run.run_ledger import EarlierTime
from aboard.diagnoses import AboardError
from aboard.trainer import step as stepping
from aboard.trainer.distributed.rank_consensus import RankConsensus
from aboard.trainer.distributed.rank_context import join_process_group, leave_process_group
from aboard.trainer.loop import train
from aboard.trainer.model import chunked_loss

PATIENCE = 120.0


def trained(training: Training) -> str:
    """Runs a whole training on this rank and returns its result."""
    world = join_process_group(training)
    try:
        return train(training, world).name
    finally:
        leave_process_group(world)


def trained_by_maths(training: Training) -> str:
    """As `trained`, with attention as simulated GPUs compute it: by its definition, not by the CPU's fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return trained(training)


def failed(training: Training, how: Callable[..., str] = trained, *args: Any) -> tuple[str, str]:
    """A training that must raise: its code, and what was seen."""
    try:
        how(training, *args)
    except AboardError as error:
        return error.code, error.seen
    raise AssertionError("it ended well")


def seeded(training: Training) -> int:
    """What the last step of a training drew its dropout from."""
    trained(training)
    return torch.initial_seed()


def waited(training: Training) -> list[list[str]]:
    """The callers of device syncs during a whole training."""
    waits = Waits()
    with waits:
        trained(training)
    return waits.found


def terminated(training: Training, rank: int) -> str:
    """A training in which one rank gets SIGTERM as soon as it listens to it."""

    def watch() -> None:
        deadline = time.monotonic() + PATIENCE
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and time.monotonic() < deadline:
            Event().wait(0.002)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = Thread(target=watch, daemon=True)
    if int(os.environ["RANK"]) == rank:
        watcher.start()
    return trained(training)


def touched(training: Training, name: str) -> Training:
    """A training in whose folder a file was touched: its first step asks, and its second one acts on it."""
    Path(training.output_dir).mkdir(parents=True, exist_ok=True)
    (Path(training.output_dir) / name).touch()
    return training


def lines(training: Training) -> list[dict[str, Any]]:
    """The metrics of a training, line by line."""
    path = Path(training.output_dir) / "metrics.jsonl"
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def curve(training: Training) -> list[tuple[float, float]]:
    """Loss and gradient norm of each logged step."""
    return [(line["loss"], line["grad_norm"]) for line in lines(training) if "loss" in line]


def poisoned(folder: Path, source: Path, token: str) -> str:
    """A copy of a model for which this token, when it is read, is no number."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - who else is asked needs none of it

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight[ord(token)] = torch.nan
    model.save_pretrained(folder)
    return str(folder)


def overflowed(training: Training, rank: int, steps: range) -> str:
    """A training in which the gradient of one rank is too large for float16 in these steps, whatever the loss scale."""
    forward = stepping.forward_micro_batch
    micro = count(0)

    def too_steep(*args: Any) -> torch.Tensor:
        loss = forward(*args)
        # The first pass of replicas is a rehearsal.
        place = next(micro) - isinstance(args[0].model, DistributedDataParallel)
        if 1 + place // training.micro_batches(int(os.environ["WORLD_SIZE"])) in steps:
            loss.register_hook(lambda slope: slope * 1e12)
        return loss

    if int(os.environ["RANK"]) == rank:
        stepping.forward_micro_batch = too_steep  # type: ignore[assignment]
    try:
        return trained(training)
    finally:
        stepping.forward_micro_batch = forward


def saved_by_cost(training: Training, failures: int) -> int:
    """A training in which only rank 0 knows of earlier failures, and saves soon; how often ranks summed anything."""
    world = join_process_group(training)
    earlier = EarlierTime(seconds={"steps": 20.0}, failures=failures) if world.main else EarlierTime()
    with (
        patch.object(save_interval, "FIRST_SECONDS", 0.01 if world.main else 1e9),
        patch.object(RankConsensus, "sums", autospec=True, side_effect=RankConsensus.sums) as sums,
    ):
        try:
            train(training, world, earlier)
        finally:
            leave_process_group(world)
    return sums.call_count


def trained_in_chunks(training: Training) -> str:
    """A whole training whose loss is computed for seven positions at a time."""
    with patch.dict(chunked_loss._ELEMENTS, cpu=7 * VOCABULARY):
        return trained(training)
