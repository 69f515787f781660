"""The optimizers: the numbers of their libraries, the same on any layout, and resumed bit by bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import save_cases
import torch
from train_cases import curve, trained, waited
from train_crew import Crew
from transformers import AutoModelForCausalLM, optimization

from aboard.core.plan.training_settings import Adapter, Optim, Training
from aboard.trainer.optimizer.adafactor import Adafactor
from aboard.trainer.optimizer.adamw_8bit import AdamW8bit, build_map
from aboard.trainer.optimizer.build_optimizer import build_optimizer, clip_and_update_weights, count_state_bytes
from aboard.trainer.optimizer.muon import Muon
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer, get_local

Settled = Callable[..., Training]
OPTIMIZERS: tuple[Optim, ...] = ("adafactor", "muon", "adamw_8bit")
# Muon iterates in bfloat16: 5e-5 was measured.
BARS = {"adafactor": 1e-5, "muon": 3e-4, "adamw_8bit": 1e-5}
RATES = (1e-2, 2e-2, 1e-2, 5e-3, 1e-3)


def build(optim: str, weights: list[torch.Tensor]) -> ShardedOptimizer:
    matrices = [{"params": [each for each in weights if each.ndim > 1], "weight_decay": 0.1, "muon": True}]
    if optim == "adafactor":
        return Adafactor([{"params": weights, "weight_decay": 0.1}], lr=1e-2)
    if optim == "muon":
        return Muon(matrices, lr=1e-2)
    return AdamW8bit([{"params": weights, "weight_decay": 0.1}], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)


def make_weights(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def set_gradients(weights: list[torch.Tensor], step: int) -> None:
    torch.manual_seed(step)
    for each in weights:
        each.grad = torch.randn(each.shape)


# -- the numbers of the libraries --------------------------------------------------------------------------------------


def compare(ours: ShardedOptimizer, theirs: torch.optim.Optimizer) -> None:
    for step, rate in enumerate(RATES):
        for optimizer in (ours, theirs):
            for group in optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
            weights = [each for group in optimizer.param_groups for each in group["params"]]
            set_gradients(weights, step)
            optimizer.step()
    for group, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for one, another in zip(group["params"], other["params"], strict=True):
            torch.testing.assert_close(one, another, rtol=1e-5, atol=1e-6)


def test_adafactor_is_that_of_transformers() -> None:
    """With a given learning rate, as HF's Trainer calls it: matrices, norms and stacked experts."""
    shapes = ((24, 16), (16,), (3, 8, 4))
    theirs = optimization.Adafactor(
        make_weights(*shapes), lr=1e-2, weight_decay=0.1, scale_parameter=False, relative_step=False
    )
    compare(build("adafactor", make_weights(*shapes)), theirs)


def test_muon_is_that_of_torch() -> None:
    """With the update scaled to the size of AdamW's; tall, wide and square."""
    shapes = ((24, 16), (16, 24), (16, 16))
    theirs = torch.optim.Muon(make_weights(*shapes), lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    compare(build("muon", make_weights(*shapes)), theirs)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_muon_leaves_embeddings_head_and_norms_to_adamw(family: str, settled: Settled, shelf: Path) -> None:
    """Also where the head is tied to the embedding; everything else is a matrix of a layer."""
    found = {}
    for optim in ("adamw", "muon"):
        model = AutoModelForCausalLM.from_pretrained(shelf / family, dtype=torch.float32)
        model(input_ids=torch.arange(8)[None]).logits.square().sum().backward()
        optimizer = build_optimizer(settled(optim=optim), model)
        clip_and_update_weights(optimizer, norm=torch.tensor(50.0), max_norm=1.0, learning_rate=1e-3)
        found[optim] = dict(model.named_parameters())
    differing = {name for name, weight in found["muon"].items() if not torch.equal(weight, found["adamw"][name])}
    assert differing == {name for name, weight in found["muon"].items() if ".layers." in name and weight.ndim > 1}


@pytest.mark.nightly
def test_codes_of_8bit_adamw_stand_for_the_numbers_of_torchao() -> None:
    """The map of bitsandbytes, which torchao has too."""
    utils = pytest.importorskip("torchao.optim.quant_utils")
    for signed in (True, False):
        ours = build_map(signed=signed, device=torch.device("cpu"))
        torch.testing.assert_close(ours, torch.tensor(utils.create_dynamic_map(signed=signed)), rtol=1e-6, atol=0)


@pytest.mark.nightly
def test_8bit_adamw_is_that_of_torchao() -> None:
    """Where a row has whole blocks, which torchao cuts from the flattened shard."""
    theirs = pytest.importorskip("torchao.optim").AdamW8bit
    shapes = ((32, 256), (16,))
    # Compiling takes half a minute, and computes the same.
    with torch.compiler.set_stance("force_eager"):
        compare(
            build("adamw_8bit", make_weights(*shapes)),
            theirs(make_weights(*shapes), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
        )


# -- clipping and skipping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_a_step_that_is_not_finite_changes_nothing(optim: str) -> None:
    """Neither weights nor state, in the first step as in a later one."""
    weights = make_weights((64, 64), (128, 32)) + ([] if optim == "muon" else make_weights((16,)))
    optimizer = build(optim, weights)
    skipped = build(optim, [torch.nn.Parameter(each.detach().clone()) for each in weights])
    others = [each for group in skipped.param_groups for each in group["params"]]
    for step in range(4):
        if step in (0, 2):
            set_gradients(others, step)
            others[0].grad = torch.full_like(others[0], torch.nan)
            clip_and_update_weights(skipped, norm=torch.tensor(torch.nan), max_norm=1.0, learning_rate=1e-2)
        for each, parameters in ((optimizer, weights), (skipped, others)):
            set_gradients(parameters, step)
            clip_and_update_weights(each, norm=torch.tensor(50.0), max_norm=1.0, learning_rate=1e-2)
    for one, other in zip(weights, others, strict=True):
        assert torch.equal(one, other)
        assert all(torch.equal(value, skipped.state[other][key]) for key, value in optimizer.state[one].items())


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_gradients_are_unscaled_and_clipped(optim: str) -> None:
    """A gradient of norm 50 that was scaled by 1,024 is divided by both before it is used."""
    weights, others = make_weights((64, 64)), make_weights((64, 64))
    optimizer, plain = build(optim, weights), build(optim, others)
    for step in range(3):
        norm = 50.0 * (step + 1)
        set_gradients(weights, step)
        weights[0].grad = torch.mul(weights[0].grad, 1024)  # type: ignore[arg-type]
        scale = torch.tensor(1024.0)
        clip_and_update_weights(optimizer, norm=torch.tensor(norm), max_norm=1.0, learning_rate=1e-2, loss_scale=scale)
        set_gradients(others, step)
        others[0].grad = torch.div(others[0].grad, norm + 1e-6)  # type: ignore[arg-type]
        clip_and_update_weights(plain, norm=torch.tensor(1.0), max_norm=0.0, learning_rate=1e-2)
    torch.testing.assert_close(weights, others, rtol=1e-5, atol=1e-6)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optim", ["adamw", *OPTIMIZERS])
@pytest.mark.parametrize("shape", [(64, 64), (100, 30), (16,), (4, 32, 32)])
def test_the_size_of_a_state_is_known(optim: Optim, shape: tuple[int, ...], settled: Settled) -> None:
    """Exactly, but for the number of steps: what memory is estimated from."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(shape))
    module.get_output_embeddings = lambda: None  # type: ignore[assignment]
    state = build_optimizer(settled(optim=optim), module).allocate_state(module.weight)  # type: ignore[arg-type]
    state.pop("step", None)
    assert sum(get_local(each).nbytes for each in state.values()) == count_state_bytes(
        optim, shape, hidden=len(shape) == 2
    )


# -- any layout --------------------------------------------------------------------------------------------------------

LAYOUTS = [
    pytest.param(2, 1, "full"),
    pytest.param(2, 1, "none", marks=pytest.mark.nightly),
    pytest.param(4, 1, "full", marks=pytest.mark.nightly),
    pytest.param(4, 2, "hybrid", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize(("world", "nodes", "sharding"), LAYOUTS)
def test_every_layout_has_the_curve_of_one_rank(
    optim: Optim, world: int, nodes: int, sharding: str, settled: Settled, crew: Crew, tmp_path: Path
) -> None:
    """Losses and norms of each step; weights decay, and gradients are clipped."""
    alone = settled("qwen2", optim=optim, max_steps=8, global_batch_size=4, output_dir=str(tmp_path / "alone"))
    crew.run(1, trained, alone)
    together = replace(alone, sharding=sharding, output_dir=str(tmp_path / "together"))  # type: ignore[arg-type]
    crew.run(world, trained, together, nodes=nodes)
    assert len(curve(alone)) == 8
    for one, other in zip(curve(alone), curve(together), strict=True):
        assert other == pytest.approx(one, rel=BARS[optim])


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 1, "full"), (1, 1, "none")),
        pytest.param((1, 1, "none"), (3, 1, "full"), marks=pytest.mark.nightly),
        pytest.param((3, 1, "full"), (4, 2, "hybrid"), marks=pytest.mark.nightly),
        pytest.param((4, 2, "hybrid"), (2, 1, "none"), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_any_layout_resumes_every_bit(
    optim: Optim, before: tuple[int, int, str], after: tuple[int, int, str], settled: Settled, crew: Crew
) -> None:
    """Row and column factors, momenta, codes and scales."""
    training = settled(optim=optim, global_batch_size=4, sharding=before[2])
    saved = crew.run(before[0], save_cases.save, training, nodes=before[1])
    came = crew.run(after[0], save_cases.resume, replace(training, sharding=after[2]), nodes=after[1])  # type: ignore[arg-type]
    assert [each.error for each in came] == [None] * after[0]
    assert all(each == saved[0] for each in saved)
    assert all(each.hashes == saved[0] for each in came)


def test_another_optimizer_does_not_continue(settled: Settled, crew: Crew) -> None:
    """The refusal names both, and the command that keeps the old one."""
    training = settled(optim="adafactor")
    crew.run(1, save_cases.save, training)
    (came,) = crew.run(1, save_cases.resume, replace(training, optim="muon"))
    assert came.error is not None
    code, seen, fix = came.error
    assert (code, "optim: adafactor → muon" in seen) == ("checkpoint-differs", True)
    assert "train.optim=adafactor" in fix


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_no_step_waits_for_the_device(optim: Optim, settled: Settled, crew: Crew) -> None:
    """Also where ranks exchange parts of matrices, no value is read back by the host."""
    training = settled(optim=optim, max_steps=3, logging_steps=3, sharding="full")
    for found in crew.run(2, waited, training):
        assert not [stack for stack in found if any("train/step.py" in frame for frame in stack)]


@pytest.mark.parametrize("optim", ["adafactor", "adamw_8bit"])
def test_adapters_train_with_it(optim: Optim, settled: Settled, crew: Crew) -> None:
    """Only the adapter's matrices have a state."""
    training = settled(optim=optim, adapter=Adapter(r=16), max_steps=6, global_batch_size=4, sharding="full")
    crew.run(2, trained, training)
    losses = [loss for loss, _ in curve(training)]
    assert losses[-1] < losses[0]
