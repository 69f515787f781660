"""Memory that is told before a launch is the memory that is there, and what is told to help helps."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model_cases import (
    FAMILIES,
    SHAPE,
    activations_told_and_kept,
    advised,
    advised_line,
    chosen,
    estimated_and_measured,
    flops,
    made,
    peak_told_and_measured,
    ran_out,
    without_weights,
)
from train_crew import Crew

from aboard.core.plan.training_settings import Adapter

GIB = 1 << 30


@pytest.fixture(scope="session")
def configs(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    for family, own in FAMILIES.items():
        crew.run(1, partial(without_weights, folder / family, family, **{**SHAPE, **own}))
    large = {"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False}
    crew.run(1, partial(without_weights, folder / "7b", "llama", **{**SHAPE, **large, **heads}))
    return folder


_PRECISIONS = {"fp32": False, "bf16": True}
_ROOMS = {"alone": (1, True), "ample": (4, True), "little": (4, False)}
# Each precision, accumulation and room once, and all families alone; on four ranks, one family of each kind of room.
_EVERY_TIME = {
    ("fp32", 2, "alone", "llama"),
    ("fp32", 2, "alone", "qwen2"),
    ("bf16", 4, "alone", "gemma2"),
    ("fp32", 1, "ample", "qwen2"),
    ("bf16", 1, "little", "llama"),
    ("bf16", 1, "little", "gemma2"),
}


@pytest.mark.parametrize(
    ("family", "bf16", "steps", "ranks", "ample"),
    [
        pytest.param(
            family,
            _PRECISIONS[precision],
            steps,
            *_ROOMS[room],
            id=f"{precision}-{steps}-{room}-{family}",
            marks=[] if (precision, steps, room, family) in _EVERY_TIME else pytest.mark.nightly,
        )
        for precision in _PRECISIONS
        for steps in (1, 2, 4)
        for room in _ROOMS
        for family in FAMILIES
    ],
)
def test_states_are_told_within_a_tenth(
    crew: Crew,
    configs: Path,
    family: str,
    ranks: int,
    ample: bool,  # noqa: FBT001 - pytest's
    steps: int,
    bf16: bool,  # noqa: FBT001 - pytest's
) -> None:
    """The most that weights, gradients, optimizer and what is gathered take, in three layouts."""
    nodes = (1,) if ranks == 1 else (2, 2)
    given = {"bf16": bf16, "gradient_accumulation_steps": steps}
    case = partial(estimated_and_measured, configs, [family], nodes, ample=ample, **given)
    told = crew.run(ranks, case, nodes=len(nodes))[0]
    assert {one.layout.split()[0] for one in told} == ({"none"} if ranks == 1 else {"full", "hybrid", "none"})
    assert [one for one in told if abs(one.told / one.measured - 1) > 0.1] == []


# 55M parameters, as in bench/train.py.
LARGE = {
    "vocab_size": 16_384,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_ADAPTERS = {
    "full": None,
    "lora": Adapter(),
    "lora-attention": Adapter(target_modules=("q_proj", "v_proj")),
    "lora-dropout": Adapter(dropout=0.1),
    "dora": Adapter(use_dora=True),
    "qlora": Adapter(load_in_4bit=True),
}


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    folder = tmp_path_factory.mktemp("large")
    crew.run(1, partial(made, folder, "llama", **LARGE))
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("adapter", "sharding"),
    [
        (adapter, sharding)
        for adapter in _ADAPTERS
        # Quantized weights can't be sharded.
        for sharding in (("alone", "none") if adapter == "qlora" else ("alone", "none", "full", "hybrid"))
    ],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_the_whole_peak_is_told_within_a_tenth(
    crew: Crew,
    large: Path,
    adapter: str,
    sharding: str,
    chunked: bool,  # noqa: FBT001 - pytest's
) -> None:
    """States, activations and logits of whole steps of a 55M model, in full and with adapters."""
    nodes = {"alone": (1,), "none": (2,), "full": (2,), "hybrid": (2, 2)}[sharding]
    given: dict[str, Any] = {"adapter": its} if (its := _ADAPTERS[adapter]) else {}
    given |= {"max_length": 256, "gradient_accumulation_steps": 1, "chunked_loss": chunked}
    layout = "none" if sharding == "alone" else sharding
    case = partial(peak_told_and_measured, large, nodes, layout, **given)
    told = crew.run(sum(nodes), case, nodes=len(nodes))[0]
    assert abs(told.told / told.measured - 1) < 0.1, told


_HALF, _AUTOCAST = {"bf16": True, "half": True}, {"bf16": True}
# Norms of several kinds, heads that share keys or not, one matmul or three, gates, windows, capped scores, experts.
_OWN_SHAPE: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32, "sliding_window": 64},
    "gpt_neox": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
_SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama fp32": ("llama", {}),
    "llama autocast": ("llama", _AUTOCAST),
    "llama bf16": ("llama", _HALF),
    "llama bf16 checkpointing": ("llama", {**_HALF, "gradient_checkpointing": True}),
    "llama bf16 selective": ("llama", {**_HALF, "gradient_checkpointing": "selective"}),
    "llama fp32 LoRA": ("llama", {"adapter": Adapter()}),
    "llama autocast LoRA": ("llama", {**_AUTOCAST, "adapter": Adapter(target_modules=("q_proj", "v_proj"))}),
    "llama autocast LoRA dropout": ("llama", {**_AUTOCAST, "adapter": Adapter(dropout=0.1)}),
    "qwen3 bf16": ("qwen3", _HALF),
    "olmo2 autocast": ("olmo2", _AUTOCAST),
    "phi3 fp32": ("phi3", {}),
    "gpt_neox bf16": ("gpt_neox", _HALF),
    "gemma3 autocast": ("gemma3_text", _AUTOCAST),
    "gemma2 bf16 eager": ("gemma2", {**_HALF, "attn_implementation": "eager"}),
    "mixtral bf16": ("mixtral", _HALF),
}


# One of each kind; the others cost as much again.
_SAVED_EVERY_TIME = {
    *("llama fp32", "llama autocast", "llama bf16 selective", "llama autocast LoRA", "qwen3 bf16", "gemma2 bf16 eager")
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in _SAVED_EVERY_TIME else pytest.mark.nightly) for name in _SAVED],
)
def test_saved_tensors_are_told_within_a_tenth(crew: Crew, tmp_path: Path, name: str) -> None:
    """What autograd keeps at the end of a forward: families, precisions, checkpointing and LoRA, on packed rows."""
    family, changed = _SAVED[name]
    # Twice as wide as the models above, so that the small tensors count less.
    shape = {**SHAPE, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "vocab_size": 512}
    own = {"bos_token_id": 1, "eos_token_id": 2, **_OWN_SHAPE.get(family, {})}
    crew.run(1, partial(made, tmp_path, family, **{**shape, **own}))
    [(told, kept)] = crew.run(1, partial(activations_told_and_kept, tmp_path, max_length=256, **changed))
    sys.stdout.write(f"{name}: told {told:,}, kept {kept:,}: {told / kept:.3f}\n")
    assert 0.9 < told / kept < 1.1


def test_auto_is_the_fastest_that_fits(crew: Crew, configs: Path) -> None:
    """Whole models where there is room, else shards within a node, else over all; gathered weights stay if they can."""
    rooms = (200, 90, 30, 16, 3)
    [found] = crew.run(1, partial(chosen, configs / "7b", (8, 8), [room * GIB for room in rooms]))
    assert [one.sharding for one in found] == ["none", "hybrid", "hybrid", "full", "full"]
    assert found[1].keep
    assert not found[-2].keep
    assert [one.fits for one in found] == [True, True, True, True, False]


def test_auto_leaves_room(crew: Crew, configs: Path) -> None:
    """A layout that barely fits by the estimate may not fit: the next one is a little slower."""
    [[ample]] = crew.run(1, partial(chosen, configs / "7b", (8, 8), [1 << 40]))
    rooms = [int(ample.total * factor) for factor in (1.02, 1.2)]
    [found] = crew.run(1, partial(chosen, configs / "7b", (8, 8), rooms))
    assert [one.sharding for one in (ample, *found)] == ["none", "hybrid", "none"]


def test_a_gpu_needs_more_beside_the_tensors(crew: Crew, configs: Path) -> None:
    """CUDA's context, NCCL's buffers and cuBLAS's workspaces, and a larger part for fragmentation."""
    for device, process, slack in (("cpu", 1, 1.05), ("cuda", 3, 1.09)):
        [[found]] = crew.run(1, partial(chosen, configs / "7b", (8, 8), [1 << 40], device=device))
        assert found.total == int(found.peak * slack) + process * GIB


def test_a_rank_without_memory_says_what_needs_less(crew: Crew, configs: Path) -> None:
    """With torch's own figures, and with the estimate for each setting, in an order that changes no loss first."""
    [(seen, fix)] = crew.run(1, ran_out, configs / "7b")
    assert re.fullmatch(
        r"rank 0: CUDA out of memory\. Tried to allocate 2\.00 GiB\. GPU 0 has a total capacity of 79\.11 GiB of which"
        r" 1\.02 GiB is free\.; the estimate was \d+ GiB",
        seen,
    )
    typed = [line.partition("   # then ") for line in fix.splitlines()]
    assert [words for words, _, _ in typed] == [
        "--set train.chunked_loss=true",
        "--set train.gradient_checkpointing=true",
        "--set train.per_device_train_batch_size=1 --set train.gradient_accumulation_steps=4",
    ]
    needed = int(seen.split()[-2])
    assert all(int(least.split()[0]) < needed for _, _, least in typed)


def test_what_is_advised_fits(crew: Crew, configs: Path) -> None:
    """Each line, typed, makes a training fit that did not; by the same estimate."""
    [found] = crew.run(1, partial(advised, configs / "7b", (8, 8), 50 * GIB, per_device_train_batch_size=4))
    assert not found.fitted
    assert [line.split("   # ")[0] for line in found.lines] == [
        "--set train.gradient_checkpointing=true",
        "--set train.per_device_train_batch_size=1 --set train.gradient_accumulation_steps=4",
    ]
    assert found.after == [True, True]
    assert found.words.startswith("6.7B in full needs ")
    assert found.words.endswith(" per rank on 2 × 8; you have 50 GiB")
    assert " of model state, sharded across 16 ranks; activations " in found.says
    assert found.says.endswith(" (6.7B parameters)")


def test_lora_is_advised_last(crew: Crew, configs: Path) -> None:
    """Where neither settings nor more nodes help, an adapter may fit; the words say what is trained."""
    [found] = crew.run(1, partial(advised_line, configs / "7b", (1,), 30 * GIB))
    assert found.lines[-1].startswith("--set train.adapter.r=16")
    assert found.after == [True]
    assert found.words.startswith("6.8B with LoRA (40M trained) needs ")


def test_a_token_costs_what_the_paper_says(crew: Crew, configs: Path) -> None:
    """Six for each weight but the embedding's, and attention over half of the positions before it."""
    [found] = crew.run(1, flops, configs / "7b", 4096)
    weights = 6_738_415_616 - 32_000 * 4096
    assert found == 6 * weights + 6 * 32 * 4096 * 4096
