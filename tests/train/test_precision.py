"""fp16 with a loss scale: the same curve on any number of ranks, an overflow skips the step on all, resume is exact."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_cases import curve, failed, lines, overflowed, trained, waited
from train_crew import Crew

from aboard.core.plan.training_settings import Training
from aboard.trainer.model.loss import compute_loss_sum
from aboard.trainer.model.loss_scale import GOOD_STEPS, START, LossScale

CLOSE = 1e-3
STEPS = 8
LAYOUTS = [
    pytest.param(2, "none", 1),
    pytest.param(2, "full", 1),
    pytest.param(4, "full", 1, marks=pytest.mark.nightly),
    pytest.param(4, "hybrid", 2, marks=pytest.mark.nightly),
]
Settled = Callable[..., Training]


@pytest.fixture
def half(settled: Settled) -> Training:
    return settled("qwen2", fp16=True, global_batch_size=4, max_steps=STEPS)


@pytest.mark.parametrize(("world", "sharding", "nodes"), LAYOUTS)
def test_fp16_has_the_curve_of_one_rank(
    world: int, sharding: str, nodes: int, half: Training, crew: Crew, tmp_path: Path
) -> None:
    """Losses and norms of each layout are those of one rank; an overflow on any rank halves the scale."""
    crew.run(1, overflowed, half, 0, range(3, 4))
    training = replace(half, output_dir=str(tmp_path / "many"), sharding=sharding)  # type: ignore[arg-type]
    crew.run(world, overflowed, training, world - 1, range(3, 4), nodes=nodes)
    one, many = curve(half), curve(training)
    assert [place for place, line in enumerate(lines(training)) if line.get("skipped")] == [2]
    del one[2], many[2]
    assert many == [pytest.approx(step, rel=CLOSE) for step in one]
    assert [line["loss_scale"] for line in lines(training)[:STEPS]] == [START] * 2 + [START / 2] * (STEPS - 2)


@pytest.mark.parametrize(("world", "sharding"), [pytest.param(1, "none", marks=pytest.mark.nightly), (2, "full")])
def test_a_resume_continues_with_the_scale(
    world: int, sharding: str, half: Training, crew: Crew, tmp_path: Path
) -> None:
    """After a resume, losses, norms and the loss scale are exactly those of a run that was not stopped."""
    whole = replace(half, save_steps=4, sharding=sharding)  # type: ignore[arg-type]
    crew.run(world, overflowed, whole, 0, range(2, 4))
    again = replace(whole, output_dir=str(tmp_path / "again"), resume=str(Path(whole.output_dir) / "step-000004"))
    crew.run(world, trained, again)
    assert curve(again) == curve(whole)[4:]
    assert [line["loss_scale"] for line in lines(again)[:4]] == [START / 4] * 4


def test_no_scale_is_small_enough(half: Training, crew: Crew) -> None:
    """If every step overflows, the run ends with the scale that was reached, and not before."""
    training = replace(half, max_steps=20, logging_steps=10)
    ((code, seen),) = crew.run(1, failed, training, overflowed, 0, range(1, 21))
    assert code == "train-loss-scale"
    assert seen == (
        "the loss scale fell to 0.0625. Since the last log line, 10 steps overflowed, the last one at step 20,"
        " though every loss is finite"
    )


def test_no_fp16_step_waits_for_the_device(half: Training, crew: Crew) -> None:
    """Scale, norm and update stay on the device."""
    (found,) = crew.run(1, waited, replace(half, max_steps=4, logging_steps=4))
    assert not [stack for stack in found if any("train/step.py" in frame for frame in stack)]


def test_the_scale_doubles_after_many_good_steps() -> None:
    """A restored counter continues: the scale doubles at the step at which it would have without the checkpoint."""
    first = LossScale(torch.device("cpu"))
    for _ in range(GOOD_STEPS - 1):
        first.update(torch.tensor(1.0))
    restored = LossScale(torch.device("cpu"))
    restored.restore(first.content())
    assert restored.value.item() == START
    restored.update(torch.tensor(1.0))
    assert restored.content() == {"value": 2 * START, "good_steps": 0}
    restored.update(torch.tensor(torch.nan))
    assert restored.content() == {"value": START, "good_steps": 0}


def test_small_probabilities_have_gradients_in_float16() -> None:
    """The gradient of an unlikely token, 1e-9, is not lost between forward and the scaled backward."""
    logits = torch.tensor([[20.7, 0.0]], dtype=torch.float16, requires_grad=True)
    exact = logits.detach().float().requires_grad_()
    (compute_loss_sum(logits, torch.tensor([0])) * START).backward()
    (compute_loss_sum(exact, torch.tensor([0])) * START).backward()
    assert logits.grad is not None
    assert exact.grad is not None
    assert 0 < exact.grad[0, 1] / START < 1.1e-9
    assert logits.grad[0, 1].item() == pytest.approx(exact.grad[0, 1].item(), rel=1e-2)


@pytest.mark.parametrize(
    ("world", "nodes", "sharding", "changed"),
    [
        (1, 1, "auto", {}),
        (2, 1, "auto", {}),
        pytest.param(4, 2, "hybrid", {}, marks=pytest.mark.nightly),
        pytest.param(2, 1, "full", {"gradient_accumulation_steps": 2}, marks=pytest.mark.nightly),
    ],
)
def test_offloading_changes_no_loss(
    world: int, nodes: int, sharding: str, changed: dict[str, int], settled: Settled, crew: Crew, tmp_path: Path
) -> None:
    """Sharded with its states on the host, also on one rank, a run has the curve of one without, and it resumes."""
    steps = {"max_steps": STEPS, "save_steps": 4, **changed}
    plain = settled(sharding="none", output_dir=str(tmp_path / "plain"), **steps)
    crew.run(world, trained, plain, nodes=nodes)
    training = settled(sharding=sharding, cpu_offload=True, **steps)
    crew.run(world, trained, training, nodes=nodes)
    assert curve(training) == [pytest.approx(step, rel=1e-5) for step in curve(plain)]
    again = replace(training, output_dir=str(tmp_path / "again"), resume=f"{training.output_dir}/step-000004")
    crew.run(world, trained, again, nodes=nodes)
    assert curve(again) == curve(training)[4:]
