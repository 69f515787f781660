"""The same curve on any number of ranks: losses and gradient norms of 20 steps against a plain single process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from train_cases import curve, trained
from train_crew import Crew
from train_reference import references

from aboard.core.plan.training_settings import Training

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
Curve = list[tuple[float, float]]


@pytest.fixture(scope="module")
def truth() -> dict[tuple[int, int, str], Curve]:
    """By world, accumulation and packing; filled by the first test that asks."""
    return {}


def is_nightly(case: Case) -> bool:
    """An accumulation of 2 lies between 1 and 4, a world of 3 between 2 and 4; each is met once every time."""
    return (case.accumulation == 2 or case.world == 3) and case not in {
        Case(2, 2, "packed", "full"),
        Case(3, 1, "padded", "none"),
        Case(3, 4, "packed", "full"),
    }


def key(case: Case) -> tuple[int, int, str]:
    return case.world * case.accumulation, case.accumulation, case.packing


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(map(str, case)), marks=pytest.mark.nightly if is_nightly(case) else [])
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


@pytest.mark.parametrize(("world", "sharding"), [(1, "none"), (2, "none"), (2, "full")])
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
