"""Trainings on simulated GPUs (tests/kit/simulated_gpus): where ranks wait for the device, and what they compute."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import simulated_gpus
from model_cases import training, without_weights
from train_cases import curve, trained_by_maths
from train_crew import Crew

from aboard.core.plan.training_settings import Adapter, Training
from aboard.core.probes.probe import CommandOutput
from aboard.doctor.compute.subject import parse_speed
from aboard.node_scripts.script_source import read_script

Settled = Callable[..., Training]
# Where a training may wait: until its first step, to print a line of metrics, to copy a checkpoint, and at its end.
ALLOWED = {
    "trainer/distributed/rank_context.py:join_process_group",
    "trainer/loop.py:_build_stepper",
    "trainer/periodic_actions.py:log",
    "trainer/periodic_actions.py:evaluate",
    "trainer/periodic_actions.py:save",
    "trainer/weights/load_weights.py:read",
}
SAVING = "trainer/checkpoint/"
# With `cpu_offload` the CPU takes the optimizer's step: each step has to wait for the gradients to arrive on the host.
# FSDP does so at the end of the backward pass, in a thread of autograd or in that of the step.
OFFLOADED: tuple[list[str], ...] = ([], ["trainer/step.py:__call__"])


def list_hidden_waits(run: simulated_gpus.SimulatedRun, *, offloaded: bool = False) -> list[dict[str, Any]]:
    """Those after a rank's first log line: before it, DDP arranges its buckets once, and adamw_8bit makes its table."""
    hidden, logged = [], set()
    for wait in run.waits:
        allowed = bool(ALLOWED.intersection(wait["by"])) or any(frame.startswith(SAVING) for frame in wait["by"])
        allowed |= offloaded and wait["what"] == "Event.synchronize" and wait["by"][:1] in OFFLOADED
        if not allowed and wait["rank"] in logged:
            hidden.append(wait)
        if "trainer/periodic_actions.py:log" in wait["by"]:
            logged.add(wait["rank"])
    return hidden


def compare(settled: Settled, crew: Crew, tmp_path: Path, **changed: Any) -> None:
    """The same training on 2 nodes × 2 simulated GPUs and on CPUs: no wait between log lines, and the same losses.

    Attention in half precision is given the ends of documents instead of masks; then losses are close.
    """
    usual = {"max_steps": 6, "logging_steps": 3, "gradient_accumulation_steps": 2, "bf16": True}
    training = settled(**{**usual, **changed}, device="cuda")
    run = simulated_gpus.train(tmp_path, asdict(training), nodes=2, ranks=2)
    assert list_hidden_waits(run, offloaded="cpu_offload" in changed) == []
    # The log itself works: reading the metrics of a line waits.
    assert any("trainer/metrics/step_statistics.py:read" in wait["by"] for wait in run.waits)
    on_gpus = curve(training)
    reference = settled(**{**usual, **changed}, device="cpu", output_dir=str(tmp_path / "cpu"))
    crew.run(4, trained_by_maths, reference, nodes=2)
    losses = [loss for loss, _norm in on_gpus]
    masked = training.attn_implementation != "auto" or training.precision == "float32"
    assert ("packed rows need masks" in run.output) == masked
    # With masks, the same kernels in the same order.
    close = 1e-6 if masked else 1e-3
    assert losses == pytest.approx([loss for loss, _norm in curve(reference)], abs=close)
    assert len(losses) == 2


def test_no_rank_waits_for_its_gpu_between_two_log_lines(settled: Settled, crew: Crew, tmp_path: Path) -> None:
    """Sharded within nodes, in bf16, with accumulation; losses are those of CPUs, although rows have no masks."""
    compare(settled, crew, tmp_path, sharding="hybrid")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changed",
    [
        {"sharding": "full"},
        {"sharding": "full", "attn_implementation": "sdpa"},
        {"sharding": "none"},
        {"sharding": "full", "family": "mistral"},
        {"sharding": "full", "cpu_offload": True},
        {"sharding": "full", "chunked_loss": True},
        {"sharding": "hybrid", "gradient_checkpointing": "selective"},
        {"sharding": "none", "gradient_checkpointing": True},
        {"sharding": "full", "optim": "adamw_8bit"},
        {"sharding": "none", "optim": "adafactor"},
        {"sharding": "full", "bf16": False},
        {"sharding": "none", "bf16": False, "family": "gemma2"},
        {"sharding": "full", "bf16": False, "fp16": True},
        {"sharding": "hybrid", "optim": "muon"},
        {"sharding": "none", "adapter": Adapter(r=4)},
        {"sharding": "full", "family": "qwen2", "adapter": Adapter(r=4, dropout=0.1)},
    ],
    ids=lambda changed: " ".join(f"{name}={value}" for name, value in changed.items()),
)
def test_no_layout_has_a_hidden_wait(changed: dict[str, Any], settled: Settled, crew: Crew, tmp_path: Path) -> None:
    """Nor one of the other variants of loss, checkpointing, optimizer and precision."""
    compare(settled, crew, tmp_path, **changed)


_WIDE = {
    "vocab_size": 256,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
}


@pytest.mark.nightly
def test_activations_are_told_within_a_tenth_of_what_the_kernels_of_gpus_keep(crew: Crew, tmp_path: Path) -> None:
    """Of all heads, grouped heads and windows, replicated and sharded, with and without checkpointing, packed."""
    families = {
        "llama": {},
        "qwen2": {"num_key_value_heads": 2},
        "mistral": {"num_key_value_heads": 4, "sliding_window": 64},
    }
    for family, own in families.items():
        crew.run(1, partial(without_weights, tmp_path / family, family, **{**_WIDE, **own}))
    usual: dict[str, Any] = {"from_scratch": True, "bf16": True, "device": "cuda", "max_length": 512}
    trainings = [
        training(tmp_path / family, sharding=sharding, gradient_checkpointing=checkpointing, **usual)
        for family in families
        for sharding in ("none", "full")
        for checkpointing in (False, "selective")
    ]
    found = simulated_gpus.measure_saved([asdict(each) for each in trainings])
    assert {attention for attention, _, _ in found} == {"aboard_varlen"}
    assert [one for one in found if abs(one[1] / one[2] - 1) > 0.1] == []
    assert len(found) == 12


@pytest.mark.nightly
def test_a_training_on_gpus_that_was_killed_ends_as_an_undisturbed_one(
    settled: Settled, crew: Crew, tmp_path: Path
) -> None:
    """After a SIGKILL of one rank, the others are ended, and the next attempt continues from the last checkpoint."""
    usual: dict[str, Any] = {"sharding": "full", "bf16": True, "max_steps": 6, "save_steps": 2, "device": "cuda"}
    killed = settled(**usual)
    with pytest.raises(AssertionError, match="killed at step 5"):
        simulated_gpus.train(tmp_path, asdict(killed), nodes=2, ranks=2, kill_at=5)
    assert list(tmp_path.glob("out/step-000002/*.json"))
    simulated_gpus.train(tmp_path, asdict(killed), nodes=2, ranks=2)
    undisturbed = settled(**usual, output_dir=str(tmp_path / "undisturbed"))
    simulated_gpus.train(tmp_path, asdict(undisturbed), nodes=2, ranks=2)
    assert curve(killed)[-2:] == curve(undisturbed)[-2:]


@pytest.mark.nightly
def test_a_gpu_without_memory_ends_a_training_with_settings_that_need_less(settled: Settled, tmp_path: Path) -> None:
    """The rank raises torch's own error, and says what the estimate is with other settings."""
    training = settled(sharding="full", bf16=True, max_steps=2, device="cuda", gradient_checkpointing=False)
    with pytest.raises(AssertionError) as raised:
        simulated_gpus.train(tmp_path, asdict(training), nodes=1, ranks=2, SIMULATED_GPUS_GIB="0.0002")
    assert "CUDA out of memory. Tried to allocate" in str(raised.value)
    assert "[train-memory]" in str(raised.value)
    assert "--set train.gradient_checkpointing=true" in str(raised.value)


@pytest.mark.nightly
def test_the_code_of_check_only_compute_measures_them() -> None:
    """That of CPUs and of real GPUs, with the copies between host and device; hidden ones are not measured."""
    words = [sys.executable, "-c", read_script("compute_speed"), "gpus"]
    for visible, names in (("0,1", ["NVIDIA H100 80GB HBM3"] * 2), ("1", ["NVIDIA H100 80GB HBM3"])):
        variables = {**os.environ, **simulated_gpus.environment(2, CUDA_VISIBLE_DEVICES=visible)}
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
        speed = parse_speed(CommandOutput(code=0, stdout=done.stdout))
        assert speed is not None
        assert [slot.kind.raw() for slot in speed.slots] == names
        assert all(slot.multiply and slot.copy and slot.to_device and slot.from_device for slot in speed.slots)
