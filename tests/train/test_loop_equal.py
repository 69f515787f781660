"""The same curve on any number of ranks: losses and gradient norms of 20 steps against a plain single process."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from train_cases import curve, trained
from train_crew import Crew
from train_reference import reference_of, references

from aboard.core.plan.training_settings import Training
from aboard.trainer.checkpoint.commit_marker import NAME, parse_marker

CLOSE = 1e-5
# bf16 has 8 bits: a rounding is up to 2^-9 of a value, and the mean over tokens hides most of them.
CLOSE_BF16 = 2e-2
# Tied, untied, and windows that alternate: each with another accumulation, so that all meet every world and layout.
FAMILIES = {1: "llama", 2: "qwen2", 4: "gemma2"}


class Case(NamedTuple):
    world: int
    accumulation: int
    packing: str
    sharding: str

    @property
    def nodes(self) -> int:
        return 2 if self.sharding == "hybrid" else 1

    def training(self, settled: Callable[..., Training]) -> Training:
        # Windows in all layers are met too.
        family = "mistral" if (self.accumulation, self.packing) == (4, "padded") else FAMILIES[self.accumulation]
        return settled(family, self.packing, gradient_accumulation_steps=self.accumulation, sharding=self.sharding)


CASES = [
    Case(world, accumulation, packing, sharding)
    for world in (1, 2, 3, 4)
    for accumulation in (1, 2, 4)
    for packing in ("packed", "padded")
    for sharding in ("none", "full", "hybrid")
    if sharding == "none" or (sharding == "full" and world > 1) or world == 4
]
# Any two values that some case has, one of these has: a world of 3 that shards, say. The others are nightly.
EVERY_TIME = {
    Case(1, 1, "packed", "none"),
    Case(1, 2, "padded", "none"),
    Case(1, 4, "padded", "none"),
    Case(2, 1, "padded", "none"),
    Case(2, 2, "packed", "full"),
    Case(2, 4, "packed", "full"),
    Case(3, 1, "packed", "none"),
    Case(3, 2, "padded", "none"),
    Case(3, 4, "padded", "full"),
    Case(4, 1, "packed", "full"),
    Case(4, 1, "padded", "hybrid"),
    Case(4, 2, "packed", "hybrid"),
    Case(4, 4, "packed", "hybrid"),
    Case(4, 4, "padded", "none"),
}
Curve = list[tuple[float, float]]


@pytest.fixture(scope="module")
def truth() -> dict[tuple[int, int, str], Curve]:
    """By world, accumulation and packing; filled by the first test that asks."""
    return {}


def key(case: Case) -> tuple[int, int, str]:
    return case.world * case.accumulation, case.accumulation, case.packing


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(map(str, case)), marks=[] if case in EVERY_TIME else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_every_layout_has_the_curve_of_one_process(
    request: pytest.FixtureRequest,
    case: Case,
    settled: Callable[..., Training],
    crew: Crew,
    truth: dict[tuple[int, int, str], Curve],
) -> None:
    """World size, accumulation, packing and sharding change no loss and no gradient norm."""
    if not truth:
        chosen = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
        asked = {key(each): (each.training(settled), key(each)[0]) for each in chosen if isinstance(each, Case)}
        answers = crew.run(2, references, list(asked.values()))
        truth |= {name: answers[place % 2][place // 2] for place, name in enumerate(asked)}
    training = case.training(settled)
    crew.run(case.world, trained, training, nodes=case.nodes)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth[key(case)]]


def test_any_two_values_meet_every_time() -> None:
    """World size, accumulation, packing and sharding: each pair of values that a case has is in one of every time."""

    def list_pairs(cases: Iterable[Case]) -> set[tuple[tuple[str, object], ...]]:
        return {pair for case in cases for pair in combinations(case._asdict().items(), 2)}

    assert set(CASES) >= EVERY_TIME
    assert list_pairs(EVERY_TIME) == list_pairs(CASES)


@pytest.mark.parametrize("family", ["gemma2", pytest.param("llama", marks=pytest.mark.nightly)])
def test_rows_of_a_batch_are_documents_alone(family: str, settled: Callable[..., Training], crew: Crew) -> None:
    """The reference computes all documents of a step at once; one at a time, losses and norms are the same."""
    training = settled(family)
    ((together, alone),) = crew.run(1, compare_references, training)
    assert together == [pytest.approx(step, rel=CLOSE) for step in alone]


def compare_references(training: Training) -> tuple[Curve, Curve]:
    """Three steps of four bins, and with one document at a time."""
    return reference_of(training, [4] * 3), reference_of(training, [4] * 3, alone=True)


@pytest.mark.parametrize(
    ("world", "sharding"), [pytest.param(1, "none", marks=pytest.mark.nightly), (2, "none"), (2, "full")]
)
def test_bf16_stays_near(world: int, sharding: str, settled: Callable[..., Training], crew: Crew) -> None:
    """In bf16 losses and norms are within 2 % of those of float32 over 20 steps, on each layout."""
    training = settled("llama", bf16=True, sharding=sharding, global_batch_size=4)
    (truth,) = crew.run(1, references, [(training, 4)])[0]
    crew.run(world, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE_BF16) for step in truth]


def test_a_global_batch_that_no_rank_divides(settled: Callable[..., Training], crew: Crew) -> None:
    """A step of 7 bins on 3 ranks, 2 at a time, has ragged and empty micro-batches, and the curve of one process."""
    training = settled("qwen2", global_batch_size=7, per_device_train_batch_size=2, sharding="full")
    (truth,) = crew.run(1, references, [(training, 7)])[0]
    crew.run(3, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth]


def test_a_resume_on_three_ranks_has_the_same_bits(
    settled: Callable[..., Training], crew: Crew, tmp_path: Path
) -> None:
    """Three addends have several sums: those of replicas, too, are added in the same order after a resume."""
    whole = settled("qwen2", global_batch_size=6, max_steps=6, save_steps=2, sharding="none")
    crew.run(3, trained, whole)
    again = replace(whole, output_dir=str(tmp_path / "again"), resume=str(Path(whole.output_dir) / "step-000002"))
    crew.run(3, trained, again)
    assert read_hashes(again) == read_hashes(whole)


def read_hashes(training: Training) -> dict[str, str]:
    marker = parse_marker((Path(training.output_dir) / "step-000006" / NAME).read_bytes())
    return {file.name: file.sha256 for file in marker.files}
