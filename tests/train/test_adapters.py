"""LoRA: the curve of PEFT's own model, and the same curve in every layout."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from train_cases import curve, trained
from train_crew import Crew
from train_reference import references

from aboard.core.plan.training_settings import Adapter, Training
from aboard.data.sampling.source_mixing import SequenceDraw
from aboard.train.adapter.sample_dropout import DropoutKeys, SampleDropout, compute_token_keys

CLOSE = 1e-5
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
