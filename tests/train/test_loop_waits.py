"""Nothing waits for the device between log lines, and every second of a training belongs to a class."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny import tiny_data
from train_cases import lines, trained, waited
from train_crew import Crew

from aboard.core.plan.training_settings import Training
from aboard.trainer.checkpoint.background_save import CopyBarrier
from aboard.trainer.metrics.time_ledger import TimeLedger

Settled = Callable[..., Training]


@pytest.mark.parametrize(
    ("world", "sharding", "family", "packing"),
    [
        (1, "none", "llama", "padded"),
        (1, "none", "gemma2", "packed"),
        (2, "none", "mistral", "packed"),
        (2, "full", "qwen2", "packed"),
    ],
)
def test_no_step_waits_for_the_device(
    world: int, sharding: str, family: str, packing: str, settled: Settled, crew: Crew
) -> None:
    """From the batch to the update, no value is read back by the host: neither by us, nor by the model."""
    training = settled(family, packing, max_steps=6, logging_steps=6, sharding=sharding, gradient_accumulation_steps=2)
    for found in crew.run(world, waited, training):
        assert not [stack for stack in found if any("trainer/step.py" in frame for frame in stack)]


@pytest.mark.parametrize(("world", "sharding"), [(1, "none"), (2, "none"), (2, "full")])
def test_the_ledger_adds_up_to_wall_time(world: int, sharding: str, settled: Settled, shelf: Path, crew: Crew) -> None:
    """The seconds of all classes are those from the first line of the loop to its last."""
    held_out = tiny_data(shelf / "validation", documents=40, name="validation", seed=2)
    training = settled(max_steps=6, validation=(held_out,), eval_steps=2, save_steps=3, sharding=sharding)
    crew.run(world, trained, training)
    *_, last = lines(training)
    spent = last["seconds"]
    assert sum(spent.values()) == pytest.approx(last["wall"], abs=1e-6)
    busy = {"loading", "data", "forward_backward", "optimizer", "checkpoint", "evaluation", "other"}
    assert {kind for kind, seconds in spent.items() if seconds > 0} == busy | (
        {"communication"} if world > 1 else set()
    )


def test_a_log_line_says_it_all(settled: Settled, crew: Crew) -> None:
    """Each line has loss, rate, norm, tokens, speed, memory, time left and where the time went."""
    training = settled(max_steps=4, logging_steps=2, global_batch_size=4, sharding="full")
    crew.run(2, trained, training)
    first, second, _ = lines(training)
    assert (first["step"], second["step"], second["steps"], second["eta"]) == (2, 4, 4, 0.0)
    assert second["tokens"] > first["tokens"] > second["supervised"] - first["supervised"] > 0
    assert second["tokens_per_second"] == pytest.approx(2 * second["tokens_per_second_per_rank"])
    assert second["memory"] > 1e8
    assert second["mfu"] is None
    assert sum(second["seconds"].values()) == pytest.approx(2 * second["step_seconds"], rel=1e-6)


def test_waiting_for_a_copy_is_no_time_of_the_optimizer() -> None:
    """A save's copy that isn't done holds up the next step of the optimizer: those seconds are the checkpoint's."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(1)
    now = [0.0]
    ledger = TimeLedger(lambda: now[0])

    @contextmanager
    def spent() -> Iterator[None]:
        with ledger.count_as("checkpoint"):
            now[0] += 5.0
            copied.release()
            yield

    copied = CopyBarrier(patience=1.0, spent=spent)
    copied.guard(optimizer)
    ledger.switch_to("optimizer")
    optimizer.step()
    now[0] += 1.0
    copied.leave()
    taken, wall = ledger.total()
    assert (taken["checkpoint"], taken["optimizer"], wall) == (5.0, 1.0, 6.0)
