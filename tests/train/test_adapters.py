"""LoRA: the curve of PEFT's own model, and the same curve in every layout."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from train_cases import curve, failed, trained
from train_crew import Crew
from train_reference import references, save_adapter

from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import AboardError
from aboard.trainer.adapter.inject_adapter import inject_adapter
from aboard.trainer.adapter.sample_dropout import DropoutKeys, SampleDropout, compute_token_keys
from aboard.trainer.data.sampling.source_mixing import SequenceDraw
from aboard.trainer.memory.estimate import profile_model
from aboard.trainer.model.build_model import count_flops_per_token
from aboard.trainer.model.meta_model import build_on_meta
from aboard.trainer.settings.adapter_files import read_adapter_config

CLOSE = 1e-5
CLOSE_BF16 = 1e-3
# Large enough that the loss of every step depends on the adapter.
USUAL: dict[str, Any] = {"r": 4, "alpha": 16.0}
ADAPTERS = {
    "lora": Adapter(**USUAL),
    "dropout": Adapter(**USUAL, dropout=0.2),
    "rslora": Adapter(**USUAL, use_rslora=True, target_modules=("q_proj", "v_proj", "lm_head")),
    "dora": Adapter(**USUAL, use_dora=True),
    "dora-dropout": Adapter(**USUAL, use_dora=True, dropout=0.2, target_modules=r".*\.mlp\.(up|down)_proj"),
    "saved": Adapter(**USUAL, dropout=0.1, target_modules=("k_proj", "o_proj"), modules_to_save=("lm_head", "norm")),
    "head": Adapter(**USUAL, dropout=0.3, target_modules=("q_proj", "lm_head")),
}
WITHOUT_DROPOUT = [name for name, adapter in ADAPTERS.items() if not adapter.dropout]
LAYOUTS = [(2, "none"), (2, "full"), (4, "none"), (4, "full"), (4, "hybrid")]
# The few that meet everything once: each kind of adapter, each layout, packed and padded.
CHOSEN = {
    ("dropout", "packed", 2, "full"),
    ("dropout", "padded", 4, "hybrid"),
    ("dora-dropout", "packed", 4, "full"),
    ("saved", "padded", 2, "none"),
    ("head", "packed", 2, "full"),
}
CASES = [
    pytest.param(*case, id="-".join(map(str, case)), marks=[] if case in CHOSEN else pytest.mark.nightly)
    for case in ((name, packing, *layout) for name, packing, layout in product(ADAPTERS, ("packed", "padded"), LAYOUTS))
]


@pytest.mark.parametrize("name", WITHOUT_DROPOUT)
def test_the_curve_is_that_of_peft(name: str, settled: Callable[..., Training], crew: Crew) -> None:
    """Without dropout, losses and norms are those of PEFT's own model on one document at a time."""
    training = settled("qwen2", adapter=ADAPTERS[name], global_batch_size=4, sharding="full", max_steps=6)
    (truth,) = crew.run(1, references, [(training, 4)])[0]
    crew.run(2, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth]


@pytest.mark.parametrize(("name", "packing", "world", "sharding"), CASES)
def test_every_layout_has_the_curve_of_one_rank(
    name: str, packing: str, world: int, sharding: str, settled: Callable[..., Training], crew: Crew, tmp_path: Any
) -> None:
    """Ranks, layout, micro-batches and recomputation change no loss and no norm, with dropout or without."""
    its = {"adapter": ADAPTERS[name], "global_batch_size": 7, "max_steps": 6}
    alone = settled("qwen2", packing, **its, output_dir=str(tmp_path / "alone"))
    crew.run(1, trained, alone)
    training = settled(
        "qwen2", packing, **its, per_device_train_batch_size=2, sharding=sharding, gradient_checkpointing=world == 2
    )
    crew.run(world, trained, training, nodes=2 if sharding == "hybrid" else 1)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in curve(alone)]


def test_dropout_changes_the_curve_and_depends_on_the_seed(
    settled: Callable[..., Training], crew: Crew, tmp_path: Any
) -> None:
    """The first step is the base model's, since B is zero; later ones differ with the rate."""
    curves = []
    for rate in (0.0, 0.2, 0.5):
        training = settled(
            "qwen2", adapter=Adapter(**USUAL, dropout=rate), max_steps=5, output_dir=str(tmp_path / str(rate))
        )
        crew.run(1, trained, training)
        curves.append(curve(training))
    plain, some, half = curves
    assert plain[0][0] == pytest.approx(some[0][0], rel=CLOSE) == pytest.approx(half[0][0], rel=CLOSE)
    assert plain[0][1] != pytest.approx(some[0][1], rel=1e-3)
    assert some[4] != pytest.approx(half[4], rel=1e-3)


@pytest.mark.parametrize(("world", "sharding"), [(2, "full"), pytest.param(2, "none", marks=pytest.mark.nightly)])
def test_bf16_has_the_curve_of_one_rank(
    world: int, sharding: str, settled: Callable[..., Training], crew: Crew, tmp_path: Any
) -> None:
    """With a base model in bf16, losses of two ranks are within 1e-3 of one; so are norms, if it is replicated."""
    its = {"adapter": ADAPTERS["dropout"], "global_batch_size": 4, "max_steps": 6, "bf16": True}
    alone = settled("qwen2", **its, output_dir=str(tmp_path / "alone"))
    crew.run(1, trained, alone)
    training = settled("qwen2", **its, sharding=sharding)
    crew.run(world, trained, training)
    losses, norms = zip(*curve(training), strict=True)
    assert losses == pytest.approx([loss for loss, _ in curve(alone)], rel=CLOSE_BF16)
    # One rank and DDP use autocast, which keeps norms and sums in float32; FSDP computes all of it in bf16.
    close = CLOSE_BF16 if sharding == "none" else 5 * CLOSE_BF16
    assert norms == pytest.approx([norm for _, norm in curve(alone)], rel=close)


def test_frozen_weights_count_less(settled: Callable[..., Training]) -> None:
    """A frozen weight has no gradient of its own: four operations per token instead of six."""
    training = settled("qwen2")
    plain, adapted = (build_on_meta(training, torch.device("cpu")) for _ in range(2))
    inject_adapter(adapted, training, Adapter(**USUAL, modules_to_save=("lm_head",)))
    # The embedding is only looked up, and the output layer is trained in full.
    table = plain.config.vocab_size * plain.config.hidden_size
    new = sum(each.numel() for each in adapted.parameters() if each.requires_grad) - table
    frozen = sum(each.numel() for each in plain.parameters()) - 2 * table
    assert count_flops_per_token(adapted, 48) == count_flops_per_token(plain, 48) + 6 * new - 2 * frozen


def masked(rate: float, name: str, *draws: SequenceDraw, length: int = 500, size: int = 600) -> torch.Tensor:
    """What dropout leaves of ones."""
    keys = DropoutKeys()
    dropout = SampleDropout(rate, size, seed=1, name=name, keys=keys)
    tokens = torch.stack([torch.from_numpy(compute_token_keys(1, draw, length)) for draw in draws])
    keys.set(tokens, None)
    found: torch.Tensor = dropout(torch.ones(len(draws), length, size))
    return found


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_the_expectation(rate: float) -> None:
    """Over all numbers, and for each token and each feature, within five standard deviations."""
    found = masked(rate, "q", SequenceDraw(source="a", bin=3, epoch=0))[0]
    deviation = (rate / (1 - rate)) ** 0.5
    assert float(found.mean()) == pytest.approx(1, abs=5 * deviation / found.numel() ** 0.5)
    assert found.unique().tolist() == [0.0, pytest.approx(1 / (1 - rate))]
    for along, count in ((0, 500), (1, 600)):
        apart = (found.mean(along) - 1).abs().max()
        assert apart < 5 * deviation / count**0.5


def test_masks_of_modules_samples_epochs_positions_and_features_are_independent() -> None:
    """No pair of masks has a correlation above five standard deviations of chance."""
    first = SequenceDraw(source="a", bin=3, epoch=0)
    others = [
        SequenceDraw(source="a", bin=4, epoch=0),
        SequenceDraw(source="a", bin=3, epoch=1),
        SequenceDraw(source="b", bin=3, epoch=0),
    ]
    q, *rest = masked(0.3, "q", first, *others)
    rest.append(masked(0.3, "k", first)[0])
    # Neighbours along positions and along features.
    rest += [q.roll(1, 0), q.roll(1, 1), q.roll(7, 0)]
    for other in rest:
        correlation = torch.corrcoef(torch.stack([q.flatten(), other.flatten()]))[0, 1]
        assert abs(float(correlation)) < 5 / q.numel() ** 0.5
    # Each pair of features over the positions, and each pair of positions over the features.
    for table in (q, q.T):
        pairs = torch.corrcoef(table.double()).triu(1)
        assert float(pairs.abs().max()) < 6.5 / table.shape[1] ** 0.5


def test_dropout_is_off_in_evaluation() -> None:
    """Evaluation has no keys, and needs none."""
    dropout = SampleDropout(0.5, 8, seed=1, name="q", keys=DropoutKeys()).eval()
    ones = torch.ones(2, 3, 8)
    assert dropout(ones) is ones


@pytest.mark.parametrize(
    ("changed", "code", "seen"),
    [
        ({"target_modules": ("q_proj", "c_attn")}, "adapter-targets", "the model has no module c_attn"),
        ({"target_modules": r".*\.c_attn"}, "adapter-targets", "no module's full name matches"),
        ({"target_modules": "(q_proj"}, "adapter-targets", "not a valid regular expression"),
        ({"target_modules": ("input_layernorm",)}, "adapter-targets", "PEFT can't add an adapter"),
        ({"modules_to_save": ("score",)}, "adapter-targets", "the model has no module score"),
        ({"modules_to_save": ("lm_head",)}, "adapter-tied", "lm_head shares its weights with the embedding"),
        ({"target_modules": ("q_proj", "embed_tokens")}, "adapter-tied", "shares its weights with the output layer"),
    ],
)
def test_modules_that_an_adapter_cannot_have(
    changed: dict[str, Any], code: str, seen: str, settled: Callable[..., Training]
) -> None:
    """Names that match nothing, and tied weights, are refused by the estimate, which runs before nodes are claimed."""
    with pytest.raises(AboardError) as raised:
        profile_model(settled("llama", adapter=Adapter(**changed)))
    assert raised.value.code == code
    assert seen in raised.value.seen


@pytest.mark.parametrize("name", ["dora", "saved"])
def test_an_adapter_that_peft_saved_is_continued(
    name: str, settled: Callable[..., Training], crew: Crew, tmp_path: Any
) -> None:
    """Its settings come from its files, and the curve continues as that of PEFT's own model loaded from them."""
    plain = settled("qwen2", adapter=replace(ADAPTERS[name], dropout=0.0), global_batch_size=4, max_steps=4)
    crew.run(1, save_adapter, plain, tmp_path / "saved")
    adapter = Adapter(**read_adapter_config(tmp_path / "saved"), path=str(tmp_path / "saved"))
    training = replace(plain, adapter=adapter, sharding="full")
    (truth,) = crew.run(1, references, [(training, 4)])[0]
    crew.run(2, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth]
    crew.run(1, trained, replace(plain, output_dir=str(tmp_path / "new")))
    assert curve(training)[0] != pytest.approx(curve(replace(plain, output_dir=str(tmp_path / "new")))[0], rel=1e-3)


def test_an_adapter_of_another_model_is_refused(settled: Callable[..., Training], crew: Crew, tmp_path: Any) -> None:
    """The tensors of the file and of the model are the same, or the run doesn't start."""
    crew.run(1, save_adapter, settled("qwen2", adapter=Adapter(**USUAL)), tmp_path)
    adapter = Adapter(**USUAL, target_modules=("q_proj",), path=str(tmp_path))
    ((code, seen),) = crew.run(1, failed, settled("qwen2", adapter=adapter))
    assert code == "adapter-files"
    assert "have 24 tensors that this model with the adapter's settings lacks" in seen
