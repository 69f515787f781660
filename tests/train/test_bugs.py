"""The silent bugs of other trainers, each with a test that would have shown it; the numbers are those of our list."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import FAMILIES, tiny_data
from train_cases import curve, lines, seeded, touched, trained
from train_crew import Crew
from train_packed import apart, flat_apart, half_losses, masks_alike, varlen_apart
from train_reference import loss_of, reference_of, references

from aboard.core.plan.training_settings import Training
from aboard.trainer.batch_plan import BatchPlanner
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.training_data import open_training_data

Settled = Callable[..., Training]
CLOSE = 1e-5


def run(crew: Crew, training: Training, name: str, world: int = 1, **changed: object) -> list[tuple[float, float]]:
    """The curve of a training in a folder of its own."""
    training = replace(training, output_dir=f"{training.output_dir}-{name}", **changed)  # type: ignore[arg-type]
    crew.run(world, trained, training)
    return curve(training)


def same(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> bool:
    return found == [pytest.approx(step, rel=CLOSE) for step in wanted]


def test_bug_1_accumulation_is_a_full_batch(settled: Settled, crew: Crew) -> None:
    """transformers#34191: 8 at once and 8 times 1 have one curve, though their tokens are uneven."""
    training = settled(max_steps=4)
    whole = run(crew, training, "whole", per_device_train_batch_size=8)
    assert same(run(crew, training, "parts", gradient_accumulation_steps=8), whole)


def test_bug_2_accumulation_does_not_multiply_the_loss(settled: Settled, crew: Crew) -> None:
    """axolotl#2262: the logged loss of 8 micro-batches is no sum of 8 means."""
    training = settled(max_steps=1, gradient_accumulation_steps=8)
    ((truth, _),) = crew.run(1, references, [(training, 8)])[0][0]
    assert run(crew, training, "own")[0][0] == pytest.approx(truth, rel=CLOSE)


def test_bug_3_the_first_loss_is_that_of_the_data(settled: Settled, crew: Crew) -> None:
    """LlamaFactory#7443: the same global batch starts with the same loss, however it is cut."""
    training = settled("qwen2", max_steps=1, global_batch_size=12)
    first = {run(crew, training, str(rows), per_device_train_batch_size=rows)[0][0] for rows in (12, 6, 5, 3, 1)}
    assert max(first) == pytest.approx(min(first), rel=CLOSE)


@pytest.mark.parametrize(("world", "sharding"), [(1, "none"), (2, "full"), (3, "none")])
def test_bug_4_the_last_partial_step_is_divided_by_its_own_count(
    world: int, sharding: str, settled: Settled, crew: Crew
) -> None:
    """ms-swift#10084: the last 5 of 77 bins are a step of their own weight, also where a rank has none of them."""
    training = settled(max_steps=None, num_train_epochs=1.0, global_batch_size=8, sharding=sharding, logging_steps=1)
    found = run(crew, training, "own", world)
    total = len(open_training_data(training.data))
    sizes = [8] * (total // 8) + [total % 8] * (total % 8 > 0)
    assert sizes[-1] < 8
    assert same(found, crew.run(1, reference_of, training, sizes)[0])


def test_bug_5_the_loss_does_not_grow_with_copies_of_the_model(settled: Settled, crew: Crew) -> None:
    """transformers#45994: hybrid has two copies of each shard, and counts no token twice."""
    training = settled(max_steps=2, global_batch_size=8)
    alone = run(crew, training, "alone")
    hybrid = replace(training, sharding="hybrid", output_dir=f"{training.output_dir}-hybrid")
    crew.run(4, trained, hybrid, nodes=2)
    assert same(curve(hybrid), alone)


def test_bug_6_and_21_evaluation_over_uneven_shards(settled: Settled, shelf: Path, crew: Crew) -> None:
    """transformers#48167, torchtitan#1618: eval loss is one mean over tokens on any world; nobody waits."""
    held_out = tiny_data(shelf / "validation", documents=40, name="validation", seed=2)
    (truth,) = crew.run(1, loss_of, str(shelf / "llama"), held_out)
    assert len(open_training_data((held_out,))) % 3
    for world, sharding in ((1, "none"), (2, "full"), (3, "full"), (3, "none")):
        training = settled(
            max_steps=2,
            learning_rate=0.0,
            validation=(held_out,),
            eval_steps=1,
            per_device_eval_batch_size=world,
            sharding=sharding,
        )
        training = replace(training, output_dir=f"{training.output_dir}-{world}-{sharding}")
        crew.run(world, trained, training)
        found = [line["eval_loss"] for line in lines(training) if "eval_loss" in line]
        assert found == [pytest.approx(truth, rel=CLOSE)] * 2


def test_bug_7_an_epoch_is_every_bin_once(settled: Settled, crew: Crew) -> None:
    """axolotl#3444: on 3 ranks an epoch has all bins, none of them twice, and is reported as one."""
    training = settled(max_steps=None, num_train_epochs=1.0, per_device_train_batch_size=4, sharding="none")
    stream = open_training_data(training.data)
    order = stream.shuffle_sources(training.seed)
    seen = []
    for rank in range(3):
        batches = BatchPlanner(
            cursor=order, counts=stream.counts, size=12, rows=4, total=len(stream), rank=rank, world=3
        )
        seen += [draw.bin for planned in batches.walk(TrainingProgress()) for micro in planned.micro for draw in micro]
    assert sorted(seen) == list(range(len(stream)))
    crew.run(3, trained, training)
    *_, last, _ = lines(training)
    (source,) = stream.sources.values()
    assert (last["epoch"], last["tokens"]) == (1.0, source.manifest.tokens)


def test_bug_9_the_schedule_steps_once_a_step(settled: Settled, crew: Crew) -> None:
    """accelerate#2926: the learning rate of a step is the same on 1 rank and on 3."""
    training = settled(max_steps=6, global_batch_size=3, warmup_steps=2, lr_scheduler_type="linear")
    rates = []
    for world in (1, 3):
        each = replace(training, output_dir=f"{training.output_dir}-{world}")
        crew.run(world, trained, each)
        rates.append([line["learning_rate"] for line in lines(each) if "loss" in line])
    assert rates[0] == rates[1] == [pytest.approx(1e-3 * part) for part in (0.5, 1, 1, 0.75, 0.5, 0.25)]


@pytest.mark.parametrize(("world", "sharding", "nodes"), [(2, "none", 1), (3, "full", 1), (4, "hybrid", 2)])
def test_bug_10_clipping_is_by_the_norm_of_the_whole_gradient(
    world: int, sharding: str, nodes: int, settled: Settled, crew: Crew
) -> None:
    """torchtune#2420: a gradient that is cut to a tenth of its norm moves a tied model alike on every layout."""
    training = settled(max_steps=5, global_batch_size=4, max_grad_norm=0.3, adam_epsilon=1e-3, sharding=sharding)
    (truth,) = crew.run(1, references, [(training, 4)])[0]
    crew.run(world, trained, training, nodes=nodes)
    assert same(curve(training), truth)
    assert all(norm > 1 for _, norm in truth)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bug_11_documents_of_a_bin_do_not_see_each_other(family: str, attention: str, shelf: Path, crew: Crew) -> None:
    """functionary#265, trl#3526: logits of a packed bin are those of its documents, with and without windows."""
    if (family, attention) == ("gemma2", "sdpa"):
        attention = "eager"
    for keeps in ("each", "all", "none"):
        assert crew.run(1, apart, shelf / family, attention, keeps)[0] < 2e-5
    assert crew.run(1, masks_alike, shelf / family, attention)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_bug_11_nor_do_they_where_a_kernel_is_told_their_ends(family: str, shelf: Path, crew: Crew) -> None:
    """What flash-attn's kernel would be given, without a mask, keeps documents apart; the kernel itself needs a GPU."""
    assert crew.run(1, flat_apart, shelf / family)[0] < 2e-5


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma2"])
def test_bug_11_nor_do_they_by_the_kernel_that_torch_has(family: str, shelf: Path, crew: Crew) -> None:
    """Ends, windows and grouped heads are those of a plain function, forward and backward, by a reference kernel."""
    logits, outputs, gradients = crew.run(1, varlen_apart, shelf / family)[0]
    assert logits < 2e-5
    assert outputs < 1e-5
    assert gradients < 1e-5


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_bug_11_packed_losses_in_bfloat16_are_those_of_one_document_a_row(family: str, shelf: Path, crew: Crew) -> None:
    """By torch's kernel for documents, within a thousandth."""
    packed, alone = crew.run(1, half_losses, shelf / family)[0]
    assert packed == pytest.approx(alone, abs=1e-3 * alone)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_bug_11_nor_do_they_in_flex_attention(family: str, shelf: Path, crew: Crew) -> None:
    """It caps scores and is told which blocks of them to compute; compiled for a CPU here."""
    assert crew.run(1, apart, shelf / family, "flex_attention", "each")[0] < 2e-5


def test_bug_18_resume_in_a_later_epoch_keeps_its_order(settled: Settled, crew: Crew) -> None:
    """accelerate#2016: what is stopped in epoch 2 goes on in the order of epoch 2, to the same bits."""
    training = settled(max_steps=4, global_batch_size=40, logging_steps=2)
    whole = run(crew, training, "whole")
    assert crew.run(1, trained, touched(training, "STOP")) == ["STOP"]
    (stopped,) = [line for line in lines(training) if "loss" in line]
    assert 1 < stopped["epoch"] < 2
    crew.run(1, trained, training)
    assert curve(training) == whole


def test_bug_25_dropout_is_each_ranks_own_and_resumes(settled: Settled, shelf: Path, crew: Crew) -> None:
    """miles#3187: ranks draw differently, and a resumed training draws on as if it had never stopped."""
    training = settled("dropout", max_steps=6, global_batch_size=4, logging_steps=2, sharding="full")
    whole = run(crew, training, "whole", 2)
    seeds = crew.run(2, seeded, touched(training, "STOP"))
    assert len(set(seeds)) == 2
    assert len(curve(training)) == 1
    crew.run(2, trained, training)
    assert curve(training) == whole
    still = run(crew, replace(training, model=str(shelf / "qwen2")), "still", 2)
    assert not same(still, whole)
