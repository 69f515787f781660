"""torch_compile: the same losses, one compilation for all lengths, its time in a class of its own."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from model_cases import FAMILIES, SHAPE, training, without_weights
from tiny import tiny_model
from train_cases import curve, lines, trained
from train_crew import Crew, run_alone
from train_packed import compiled_apart

from aboard.core.plan.training_settings import Adapter, Checkpointing, Training
from aboard.diagnoses import AboardError
from aboard.trainer.distributed.rank_context import join_process_group
from aboard.trainer.model.build_model import build_engine
from aboard.trainer.model.compile_layers import require_compiler

STEPS = 6


def freshly_compiled(training: Training) -> str:
    """Without what an earlier test in this process has compiled."""
    torch._dynamo.reset()
    return trained(training)


@pytest.mark.parametrize(
    ("world", "sharding", "changed"),
    [
        (1, "none", {}),
        pytest.param(2, "none", {}, marks=pytest.mark.nightly),
        pytest.param(2, "full", {}, marks=pytest.mark.nightly),
        pytest.param(2, "full", {"gradient_checkpointing": True}, marks=pytest.mark.nightly),
        pytest.param(1, "none", {"gradient_checkpointing": "selective"}, marks=pytest.mark.nightly),
        pytest.param(2, "full", {"gradient_checkpointing": "selective"}, marks=pytest.mark.nightly),
        pytest.param(1, "none", {"adapter": Adapter(r=4)}, marks=pytest.mark.nightly),
        pytest.param(2, "full", {"adapter": Adapter(r=4)}, marks=pytest.mark.nightly),
        # Rows of one length, for which the compiler makes kernels.
        pytest.param(1, "none", {"packing": "packed", "family": "mistral"}, marks=pytest.mark.nightly),
        pytest.param(2, "full", {"packing": "packed", "per_device_train_batch_size": 2}, marks=pytest.mark.nightly),
    ],
)
def test_compiling_changes_no_loss(
    world: int, sharding: str, changed: dict[str, Any], settled: Callable[..., Training], crew: Crew, tmp_path: Path
) -> None:
    """Losses and norms are those of the same run uncompiled, lengths cause no compilation, and the seconds show."""
    plain = settled(**{"family": "llama", "packing": "padded", "max_steps": STEPS, "sharding": sharding, **changed})
    crew.run(world, trained, plain)
    compiled = replace(plain, torch_compile=True, output_dir=str(tmp_path / "compiled"))
    crew.run(world, freshly_compiled, compiled)
    assert curve(compiled) == [pytest.approx(step, rel=1e-5) for step in curve(plain)]
    *steps, end = lines(compiled)
    assert steps[0]["compilations"] >= 1
    # With an adapter, the first layer's input needs no gradient and that of the others does.
    assert steps[0]["recompilations"] == (1 if "adapter" in changed else 0)
    assert steps[-1]["compilations"] == steps[0]["compilations"]
    assert end["seconds"]["compile"] > 0.1
    assert sum(end["seconds"].values()) == pytest.approx(end["wall"], abs=1e-6)


@pytest.mark.nightly
def test_one_graph_is_for_any_number_of_documents(tmp_path: Path) -> None:
    """Packed rows of one length, by a reference for torch's kernel: one compilation, and the plain logits."""
    run_alone(tiny_model, tmp_path / "mistral", "mistral")
    apart, graphs, breaks = run_alone(compiled_apart, tmp_path / "mistral")
    assert apart < 1e-4
    assert (graphs, breaks) == (1, 0)


def kept_when_compiled(folder: Path, checkpointing: Checkpointing) -> int:
    """The bytes that a forward of compiled layers keeps for the backward."""
    torch._dynamo.reset()
    its = training(folder, from_scratch=True, max_length=256, torch_compile=True, gradient_checkpointing=checkpointing)
    engine = build_engine(its, join_process_group(its))
    own = {each.untyped_storage().data_ptr() for each in engine.module.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        engine.model(input_ids=torch.zeros(1, its.max_length, dtype=torch.int64), use_cache=False)
    return sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in own)


@pytest.mark.nightly
def test_compiled_layers_keep_what_selective_checkpointing_chooses(crew: Crew, tmp_path: Path) -> None:
    """Less than without checkpointing, and more than with all of it."""
    crew.run(1, partial(without_weights, tmp_path / "llama", "llama", **{**SHAPE, **FAMILIES["llama"]}))
    kinds: tuple[Checkpointing, ...] = (False, "selective", True)
    none, some, full = (crew.run(1, kept_when_compiled, tmp_path / "llama", kind)[0] for kind in kinds)
    assert full < 0.9 * some < 0.8 * none


def test_a_node_without_a_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before the model is loaded, with what to install; a compiler that the user chose is looked for."""
    require_compiler(torch.device("cpu"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(AboardError, match=r"this node has no g\+\+ \["):
        require_compiler(torch.device("cpu"))
    monkeypatch.setenv("CXX", os.devnull + "/clang++")
    with pytest.raises(AboardError, match=r"no /dev/null/clang\+\+ \(CXX is set to it\)"):
        require_compiler(torch.device("cpu"))
