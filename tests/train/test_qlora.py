"""QLoRA: the curve of PEFT on transformers' 4-bit model, on one rank and on replicas."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from save_cases import resume
from train_cases import curve, lines, touched, trained
from train_crew import Crew
from train_reference import references

from aboard.core.plan.training_settings import Adapter, Training
from aboard.trainer.adapter.inject_adapter import inject_adapter
from aboard.trainer.distributed.auto_sharding import list_shardings
from aboard.trainer.memory.estimate import profile_model
from aboard.trainer.model.build_model import count_flops_per_token
from aboard.trainer.model.export import main as export
from aboard.trainer.model.meta_model import build_on_meta

CLOSE = 1e-5
LORA = Adapter(r=4, alpha=16.0)
ADAPTER = replace(LORA, load_in_4bit=True)
SAVED = replace(ADAPTER, dropout=0.1, target_modules=("k_proj", "o_proj"), modules_to_save=("lm_head", "down_proj"))


def test_the_curve_is_that_of_peft_and_bitsandbytes(settled: Callable[..., Training], crew: Crew) -> None:
    """Two replicas have the losses and norms of PEFT on the model as transformers quantizes it."""
    training = settled("qwen2", adapter=ADAPTER, global_batch_size=4, max_steps=10)
    plain = replace(training, adapter=LORA, max_steps=1)
    truth, full = crew.run(1, references, [(training, 4), (plain, 4)])[0]
    crew.run(2, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth]
    assert full[0][0] != pytest.approx(truth[0][0], rel=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("adapter", [ADAPTER, SAVED], ids=["all", "saved"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": True, "chunked_loss": True},
        {"gradient_checkpointing": "selective", "per_device_train_batch_size": 2},
    ],
    ids=["plain", "recomputed", "selective"],
)
def test_replicas_have_the_curve_of_one_rank(
    packing: str,
    adapter: Adapter,
    options: dict[str, Any],
    settled: Callable[..., Training],
    crew: Crew,
    tmp_path: Path,
) -> None:
    """Ranks, recomputation and chunks of the loss change no loss and no norm."""
    its: dict[str, Any] = {"adapter": adapter, "global_batch_size": 7, "max_steps": 5}
    alone = settled("qwen2", packing, **its, output_dir=str(tmp_path / "alone"))
    crew.run(1, trained, alone)
    training = settled("qwen2", packing, **its, **options)
    crew.run(2, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in curve(alone)]


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_has_the_curve_of_one_rank(
    precision: str, settled: Callable[..., Training], crew: Crew, tmp_path: Path
) -> None:
    """Losses and norms of two ranks are within 1e-3 of one, and the loss is near that of float32."""
    its: dict[str, Any] = {"adapter": ADAPTER, "global_batch_size": 4, "max_steps": 5}
    alone, half, exact = (
        settled("qwen2", **its, **{precision: name != "exact"}, output_dir=str(tmp_path / name))
        for name in ("alone", "half", "exact")
    )
    crew.run(1, trained, alone)
    crew.run(2, trained, half)
    crew.run(1, trained, exact)
    assert curve(half) == [pytest.approx(step, rel=1e-3) for step in curve(alone)]
    assert [loss for loss, _ in curve(half)] == pytest.approx([loss for loss, _ in curve(exact)], rel=1e-2)


@pytest.mark.nightly
def test_a_resume_continues_the_curve_and_exports(settled: Callable[..., Training], crew: Crew, tmp_path: Path) -> None:
    """Exactly, with evaluations between; a checkpoint has no base weights; without load_in_4bit it is refused."""
    its: dict[str, Any] = {"adapter": ADAPTER, "global_batch_size": 4, "max_steps": 6, "eval_steps": 1}
    alone = settled("qwen2", **its, output_dir=str(tmp_path / "alone"))
    alone = replace(alone, validation=alone.data)
    crew.run(1, trained, alone)
    training = replace(alone, output_dir=str(tmp_path / "out"))
    assert set(crew.run(1, trained, touched(training, "STOP"))) == {"STOP"}
    (came,) = crew.run(1, resume, replace(training, adapter=LORA))
    assert "adapter.load_in_4bit: True → False" in str(came)
    crew.run(1, trained, training)
    assert [line["step"] for line in lines(training) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert curve(training) == curve(alone)
    (checkpoint,) = Path(training.output_dir).glob("step-*6")
    for merge in ([], ["--merge"]):
        assert crew.run(1, export, [str(checkpoint), str(tmp_path / f"exported{len(merge)}"), *merge]) == [0]
    assert (tmp_path / "exported0/adapter_model.safetensors").exists()
    assert (tmp_path / "exported1/model.safetensors").exists()


def test_quantized_weights_count_as_weights_and_as_half_a_byte(settled: Callable[..., Training]) -> None:
    """FLOPs are those of LoRA; memory is that of packed weights; the layout is that of replicas."""
    training = settled("qwen2", adapter=ADAPTER, sharding="auto")
    plain = replace(training, adapter=LORA)
    flops = []
    for each in (training, plain):
        model = build_on_meta(each, torch.device("cpu"))
        assert each.adapter is not None
        inject_adapter(model, each, each.adapter)
        flops.append(count_flops_per_token(model, 48))
    assert flops[0] == flops[1]
    packed, full = profile_model(training).sizes, profile_model(plain).sizes
    assert (packed.total, packed.trained) == (full.total, full.trained)
    # Two layers of 32 × 32, 16 × 32 and 64 × 32.
    weights = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
    counted = [sum(4 * torch.Size(one.shape).numel() for one in group if one.width < 1) for group in packed.groups]
    assert sum(counted) == 4 * weights
    assert list_shardings(training, (2, 2)) == ("none",)
