"""Families that take other things than most: what they are given is what they take, or packing is refused."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from odd_families import PACK, PACK_NOT, difference, reasons
from tiny import tiny_model
from train_cases import curve, failed, lines, trained
from train_crew import Crew
from train_reference import references

from aboard.core.plan.training_settings import Training
from aboard.trainer.memory.worker import answer_request

CLOSE = 1e-5


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> str:
    folder = tmp_path_factory.mktemp("odd") / "bloom"
    return str(crew.run(1, tiny_model, folder, "bloom")[0])


@pytest.mark.parametrize("family", PACK)
def test_documents_of_one_row_do_not_see_each_other(family: str, crew: Crew) -> None:
    """Packed or one a row, each document has the logits that it has alone; mpt without position ids, too."""
    for packed in (True, False):
        assert crew.run(1, partial(difference, packed=packed), family)[0] < CLOSE


@pytest.mark.parametrize("family", PACK_NOT)
def test_a_family_that_can_not_keep_them_apart_gets_one_a_row(family: str, crew: Crew) -> None:
    """Packed rows are refused with a code; alone in a row, each document has the logits that it has alone."""
    assert crew.run(1, partial(difference, packed=True), family) == ["train-packing-unknown"]
    assert crew.run(1, partial(difference, packed=False), family)[0] < CLOSE


def test_why_they_can_not(crew: Crew) -> None:
    """By what the model is, so that it is known before there are ranks and weights."""
    (found,) = crew.run(1, reasons)
    assert [family for family, why in found.items() if why is None] == list(PACK)
    assert "carry state" in found["rwkv"]
    assert "no position_ids" in found["bloom"]
    assert "one row for all tokens" in found["falcon with alibi"]


@pytest.mark.parametrize(("world", "sharding"), [(1, "none"), (2, "full")])
def test_a_model_without_position_ids_trains(
    world: int, sharding: str, bloom: str, settled: Callable[..., Training], crew: Crew
) -> None:
    """Rows of one document each: the curve of a plain single process."""
    training = settled("bloom", "padded", model=bloom, global_batch_size=4, max_steps=5, sharding=sharding)
    ((truth,),) = crew.run(1, references, [(training, 4)])
    crew.run(world, trained, training)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth]


def test_packed_data_ends_it_before_the_first_step(bloom: str, settled: Callable[..., Training], crew: Crew) -> None:
    """On all ranks alike, with what to type; and whoever asks beforehand is told the reason."""
    training = settled("bloom", model=bloom, global_batch_size=4)
    answers = crew.run(2, failed, training)
    assert [code for code, _ in answers] == ["train-packing-unknown"] * 2
    assert "takes no position_ids" in answers[0][1]
    assert lines(training) == []
    told = answer_request({"training": asdict(training), "ranks": {"n1": 1}, "memory": None})
    assert "takes no position_ids" in told["why_not_apart"]
    assert answer_request({"training": asdict(settled("llama")), "ranks": {"n1": 1}})["why_not_apart"] is None
    assert not list(Path(training.output_dir).glob("step-*"))
