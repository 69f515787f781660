"""Selective gradient checkpointing changes no loss, and its memory and its recomputation lie between none and all."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from live_bytes import LiveByteCounter
from model_cases import FAMILIES, SHAPE, training, without_weights
from torch.utils.flop_counter import FlopCounterMode
from train_cases import curve, trained
from train_crew import Crew
from train_reference import references

from aboard.core.plan.training_settings import Adapter, Checkpointing, Training
from aboard.trainer.distributed.rank_context import join_process_group
from aboard.trainer.memory.estimate import estimate_model_activations, profile_model
from aboard.trainer.model.build_model import build_engine

CLOSE = 1e-5


class Case(NamedTuple):
    family: str
    world: int
    sharding: str


CASES = [
    Case(family, world, sharding)
    for family in ("llama", "gemma2", "mistral")
    for world, sharding in ((1, "none"), (2, "none"), (2, "full"), (4, "hybrid"))
]
# gemma2's attention is eager.
EVERY_TIME = {Case("llama", 2, "full"), Case("gemma2", 2, "none")}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(map(str, case)), marks=[] if case in EVERY_TIME else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_the_curve_is_that_of_one_process(case: Case, settled: Callable[..., Training], crew: Crew) -> None:
    """On any layout, losses and gradient norms are those of a plain single process."""
    given: dict[str, Any] = {"sharding": case.sharding, "global_batch_size": 4, "max_steps": 5}
    wanted = settled(case.family, **given, gradient_checkpointing="selective")
    ((truth,),) = crew.run(1, references, [(wanted, 4)])
    crew.run(case.world, trained, wanted, nodes=2 if case.sharding == "hybrid" else 1)
    assert curve(wanted) == [pytest.approx(step, rel=CLOSE) for step in truth]


@pytest.mark.parametrize(("world", "sharding"), [(1, "none"), pytest.param(2, "full", marks=pytest.mark.nightly)])
def test_an_adapter_with_dropout_is_trained_the_same(
    world: int, sharding: str, settled: Callable[..., Training], crew: Crew, tmp_path: Path
) -> None:
    """Recomputed dropout has the masks of the forward."""
    given: dict[str, Any] = {
        "adapter": Adapter(r=4, dropout=0.2),
        "sharding": sharding,
        "global_batch_size": 4,
        "max_steps": 4,
    }
    plain = settled("qwen2", **given)
    selective = settled("qwen2", **given, gradient_checkpointing="selective", output_dir=str(tmp_path / "selective"))
    crew.run(world, trained, plain)
    crew.run(world, trained, selective)
    assert curve(selective) == [pytest.approx(step, rel=CLOSE) for step in curve(plain)]


class Measured(NamedTuple):
    kept: int
    told: int
    flops: int


def measured(folder: Path, *, bf16: bool) -> dict[Checkpointing, Measured]:
    """Of one forward and backward: bytes kept for the backward, measured and estimated, and FLOPs."""
    found: dict[Checkpointing, Measured] = {}
    for checkpointing in (False, "selective", True):
        its = training(folder, from_scratch=True, max_length=256, bf16=bf16, gradient_checkpointing=checkpointing)
        engine = build_engine(its, join_process_group(its))
        profile = profile_model(its)
        told = estimate_model_activations(profile, its, "autocast" if bf16 else "full")
        assert told is not None
        ids = torch.zeros(1, its.max_length, dtype=torch.int64)
        meter, flops = LiveByteCounter(), FlopCounterMode(display=False)
        with meter, flops:
            loss = engine.model(input_ids=ids, use_cache=False).logits[:, :1].float().sum()
            kept = meter.now()
            loss.backward()
        found[checkpointing] = Measured(
            kept=kept, told=told.saved_bytes(checkpointing=checkpointing), flops=flops.get_total_flops()
        )
    return found


@pytest.mark.parametrize(
    ("family", "bf16"),
    [
        ("llama", False),
        ("gemma2", True),
        *(
            pytest.param(family, bf16, marks=pytest.mark.nightly)
            for family, bf16 in (("llama", True), ("qwen2", False), ("qwen2", True), ("gemma2", False))
        ),
    ],
)
def test_memory_and_recomputation_lie_between(family: str, bf16: bool, crew: Crew, tmp_path: Path) -> None:  # noqa: FBT001 - pytest's
    """And what selective checkpointing keeps beyond layers' inputs is estimated within a quarter."""
    crew.run(1, partial(without_weights, tmp_path / family, family, **{**SHAPE, **FAMILIES[family]}))
    [found] = crew.run(1, partial(measured, tmp_path / family, bf16=bf16))
    none, some, full = found[False], found["selective"], found[True]
    assert full.kept < 0.9 * some.kept < 0.9 * none.kept
    assert none.flops <= some.flops < full.flops
    assert 0.75 < (some.told - full.told) / (some.kept - full.kept) < 1.25
