"""The parts of the loop that need no ranks: which bins, which tensors, which rate, which words."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from aboard.core.plan.training_settings import Training
from aboard.diagnoses import AboardError
from aboard.trainer.batch_plan import BatchPlanner
from aboard.trainer.collate import Collator
from aboard.trainer.data.sampling.packed_sequences import PackedSequence
from aboard.trainer.data.sampling.source_mixing import SequenceDraw, mix_sources
from aboard.trainer.distributed.rank_context import join_process_group
from aboard.trainer.learning_rate import compute_learning_rate
from aboard.trainer.memory.activations import estimate_activations, profile_layer
from aboard.trainer.metrics.metrics_report import format_metrics
from aboard.trainer.metrics.time_ledger import TimeLedger
from aboard.trainer.model.attention_masks import build_masks
from aboard.trainer.model.loss import compute_loss_sum
from aboard.trainer.model.meta_model import build_with_attention, can_import
from aboard.trainer.model.varlen_attention import VARLEN
from aboard.trainer.prefetch import Prefetcher
from aboard.trainer.progress import TrainingProgress

TRAINING = Training(model="m", data=(), output_dir="o", max_length=8, learning_rate=1.0)


def batches(
    total: int, *, size: int = 7, rows: int = 2, rank: int = 0, world: int = 1, bins: int = 100
) -> BatchPlanner:
    return BatchPlanner(
        cursor=mix_sources({"one": bins}, 5),
        counts=lambda draw: (10, draw.bin % 4),
        size=size,
        rows=rows,
        total=total,
        rank=rank,
        world=world,
    )


# -- which device, which attention -----------------------------------------------------------------------------------


def test_a_rank_that_finds_no_gpu_does_not_train_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head asked for GPUs, and something hides them from this rank; `device: cpu` is who wants it."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AboardError, match="torch can't use this node's GPUs: Torch not compiled") as raised:
        join_process_group(replace(TRAINING, device="cuda"))
    assert raised.value.diagnosis.code == "gpu-cuda"
    for device in ("auto", "cpu"):
        assert join_process_group(replace(TRAINING, device=device)).device.type == "cpu"


def test_attention_that_does_not_work_here_is_left_for_the_model_s_own() -> None:
    """`auto` tries flash-attn; a user's choice is never replaced."""
    config = AutoConfig.for_model("llama", hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=64)
    model = build_with_attention(TRAINING, config, ("flash_attention_2", None))
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(AboardError, match="can't be built"):
        build_with_attention(TRAINING, config, ("flash_attention_2",))


def test_an_extension_that_was_built_for_another_torch_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed, and can't be imported."""
    (tmp_path / "broken_extension.py").write_text("raise ImportError('undefined symbol: _ZN3c105ErrorC2')")
    monkeypatch.syspath_prepend(tmp_path)
    assert not can_import("broken_extension")
    assert can_import("json")


# -- which bins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_any_world_takes_the_same_bins_in_the_same_steps(world: int) -> None:
    """Together ranks have each bin of the step once, as many micro-batches each, and one divisor."""
    alone = list(batches(40).walk(TrainingProgress()))
    together = zip(
        *(batches(40, rank=rank, world=world).walk(TrainingProgress()) for rank in range(world)), strict=True
    )
    for one, ranks in zip(alone, together, strict=True):
        drawn = sorted(draw.bin for each in ranks for micro in each.micro for draw in micro)
        assert drawn == sorted(draw.bin for micro in one.micro for draw in micro)
        assert len({len(each.micro) for each in ranks}) == 1
        assert {(each.supervised, each.after) for each in ranks} == {(one.supervised, one.after)}


def test_the_last_step_takes_what_is_left() -> None:
    """40 bins by 7 are five steps and one of 5."""
    sizes = [sum(map(len, planned.micro)) for planned in batches(40).walk(TrainingProgress())]
    assert sizes == [7, 7, 7, 7, 7, 5]
    assert batches(40).steps(TrainingProgress()) == 6


def test_a_walk_goes_on_where_it_stopped_also_with_steps_of_another_size() -> None:
    """The hash of consumed bins shows neither where it was interrupted nor how many bins a step took."""
    *_, whole = batches(42).walk(TrainingProgress())
    third = list(islice(batches(42).walk(TrainingProgress()), 3))[-1]
    *_, rest = batches(42, size=3, rank=1, world=2).walk(third.after)
    assert (rest.after.ids, rest.after.index) == (whole.after.ids, 42)
    assert rest.number == 3 + 7


def test_resume_costs_the_same_at_any_index() -> None:
    """The next step is planned with as many calls at bin 10⁹ as at bin 10, within a factor of 3."""

    def count_calls(index: int) -> int:
        stream = batches(10**10, bins=10**10, size=64)
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            next(stream.walk(TrainingProgress(step=index // 64, index=index)))
        finally:
            sys.setprofile(None)
        return calls

    assert 0 < count_calls(10**9) < 3 * count_calls(10)


def test_progress_survives_being_written_down() -> None:
    """What a checkpoint holds is what is read from it."""
    progress = TrainingProgress().after([SequenceDraw(source="one", bin=3, epoch=0)], bins=1, tokens=5, supervised=2)
    assert TrainingProgress.of(progress.content()) == progress


# -- which tensors ---------------------------------------------------------------------------------------------------


def row(*lengths: int, supervised: tuple[int, ...]) -> PackedSequence:
    count = sum(lengths)
    mask = np.zeros(count, np.bool_)
    mask[list(supervised)] = True
    ids = np.arange(100, 100 + count, dtype=np.uint32)
    return PackedSequence(
        ids=ids, mask=mask, lengths=lengths, documents=(0,) * len(lengths), supervised=len(supervised)
    )


def test_all_layers_share_one_mask_of_a_packed_row() -> None:
    """A mask of booleans would be converted in each layer, and saved there: 2 GiB each for 32k tokens in bf16."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 1024}
    config = AutoConfig.for_model("llama", num_hidden_layers=5, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    masks, length = build_masks(model, torch.bfloat16), 512
    micro = masks.collate()([row(300, 212, supervised=(1,))])
    saved: dict[int, int] = {}
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() >= length * length:
            saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**masks.inputs(micro))
    assert list(saved.values()) == [2 * length * length]


_HALF, _FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("family", "changed", "dtype", "capability", "attention", "why"),
    [
        ("llama", {}, _HALF, (8, 0), VARLEN, None),
        ("mistral", {"sliding_window": 8}, torch.float16, (9, 0), VARLEN, None),
        ("llama", {}, _FULL, (9, 0), "sdpa", "no kernel for float32"),
        ("llama", {}, torch.float16, (7, 5), "sdpa", "a GPU of the Ampere generation"),
        ("llama", {"head_dim": 512}, _HALF, (9, 0), "sdpa", "heads of up to 256"),
        ("llama", {"attention_dropout": 0.1}, _HALF, (9, 0), "sdpa", "dropout"),
        ("llama", {}, _HALF, None, "sdpa", "not built with flash attention"),
        ("gemma2", {}, _HALF, (9, 0), "eager", "needs Triton"),
        ("mpt", {}, _HALF, (9, 0), "eager", "can't replace this model's"),
    ],
)
def test_a_gpu_separates_documents_without_masks_if_it_can(
    family: str,
    changed: dict[str, Any],
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    attention: str,
    why: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By torch's kernel for documents; otherwise the log says what masks cost, and why they are needed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64, "pad_token_id": 0}
    for chosen in (False, True):
        config = AutoConfig.for_model(family, num_hidden_layers=2, **{**shape, **changed})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        before = model.config._attn_implementation
        masks = build_masks(model, dtype, torch.device("cuda"), chosen=chosen)
        assert model.config._attn_implementation.replace("aboard_sdpa", "sdpa") == (before if chosen else attention)
        told = masks.describe_cost(2, 4096)
        if why is None and not chosen:
            assert told is None
            assert masks.collate().flat
        else:
            wanted = f"attn_implementation is {before}" if chosen else str(why)
            assert told is not None
            assert wanted in told


def test_what_masks_cost_is_told_for_all_kinds_of_layers() -> None:
    """Rows × length² numbers of the compute type for each kind, in one line."""
    told = replace(build_masks(_tiny_llama(), _HALF), why_dense="of a reason").describe_cost(4, 8192)
    assert told == "packed rows need masks, which take 512 MiB and rule out the fastest kernels: of a reason"


def _tiny_llama() -> PreTrainedModel:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", num_hidden_layers=1, **shape), dtype=torch.float32
    )
    return model


@pytest.mark.parametrize(("family", "attention", "kinds"), [("llama", "sdpa", 1), ("gemma2", "eager", 2)])
def test_the_estimate_counts_one_mask_for_each_kind_of_layers(family: str, attention: str, kinds: int) -> None:
    """In the model's type, whatever the number of layers."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16, "vocab_size": 256}
    config = AutoConfig.for_model(family, num_hidden_layers=4, sliding_window=64, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    masks = build_masks(model, torch.bfloat16)
    made = masks.inputs(masks.collate()([row(300, 212, supervised=(1,))]))["attention_mask"]
    each = list(made.values()) if isinstance(made, dict) else [made]
    layer = profile_layer(model.model.layers[0], None, model.config)
    told = estimate_activations(model.config, batch=1, length=512, precision="half", packed=True, profile=layer)
    assert (len(each), sum(mask.nbytes for mask in each)) == (kinds, told.masks)


def test_rows_are_padded_to_the_longest_and_positions_restart() -> None:
    """Padding is a document of its own, and lengths are multiples of 16."""
    micro = Collator()([row(3, 2, supervised=(1, 4)), row(17, supervised=(16,))])
    assert micro.input_ids.shape == (2, 32)
    assert micro.position_ids[0, :8].tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert micro.documents is not None
    assert micro.documents[0, :7].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert (micro.tokens, micro.supervised) == (22, 3)


@pytest.mark.parametrize("flat", [False, True])
def test_a_compiler_sees_micro_batches_of_one_size(flat: bool) -> None:  # noqa: FBT001 - pytest's
    """Few rows, short ones or none: as many rows of as many tokens, and padding in documents that are not longer."""
    collate = Collator(flat=flat, fixed=(3, 32))
    for bins in ([row(20, 12, supervised=(1,))] * 3, [row(5, 4, supervised=(1,))], []):
        micro = collate(bins)
        assert micro.input_ids.shape == ((1, 96) if flat else (3, 32))
        assert (micro.longest, micro.fixed) == (32, True)
        assert (micro.tokens, micro.supervised) == (sum(len(each.ids) for each in bins), len(bins))
        if flat:
            assert micro.ends is not None
            assert (int(micro.ends[0]), int(micro.ends[-1])) == (0, 96)
            assert 0 < int(micro.ends.diff().min()) <= int(micro.ends.diff().max()) <= 32
        assert int((micro.position_ids == 0).sum()) >= 3


def test_positions_are_asked_for_where_the_next_token_is_supervised() -> None:
    """Each row has its own; those that ask for fewer ask for one that is ignored."""
    micro = Collator()([row(3, 2, supervised=(1, 4)), row(4, supervised=(3,))])
    assert micro.keep is not None
    assert micro.keep.tolist() == [[0, 3], [2, 0]]
    assert micro.labels.tolist() == [[101, 104], [103, -100]]


def test_rows_share_positions_where_the_model_wants_it() -> None:
    """The union of all rows' positions."""
    micro = Collator(keeps="all")([row(3, 2, supervised=(1, 4)), row(4, supervised=(3,))])
    assert micro.keep is not None
    assert micro.keep.tolist() == [0, 2, 3]
    assert micro.labels.tolist() == [[101, -100, 104], [-100, 103, -100]]


def test_an_empty_micro_batch_is_one_row_that_weighs_nothing() -> None:
    """It has a shape for the collectives, and no label."""
    micro = Collator()([])
    assert micro.input_ids.shape == (1, 16)
    assert set(micro.labels.flatten().tolist()) == {-100}
    assert (micro.tokens, micro.supervised) == (0, 0)


def test_a_single_document_needs_no_mask() -> None:
    """Causality alone keeps it from its padding."""
    assert Collator()([row(5, supervised=(1,)), row(9, supervised=(1,))]).documents is None


def test_laid_end_to_end_the_ends_of_documents_are_told() -> None:
    """For kernels that take lengths instead of masks: padding is the last document."""
    micro = Collator(flat=True)([row(3, 2, supervised=(1, 4)), row(4, supervised=(3,))])
    assert micro.input_ids.shape == (1, 16)
    assert micro.ends is not None
    assert micro.ends.tolist() == [0, 3, 5, 9, 16]
    assert micro.longest == 7
    assert micro.labels.tolist() == [[101, 104, 103]]
    assert micro.keep is not None
    assert micro.keep.tolist() == [0, 3, 7]


# -- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
def test_the_loss_and_its_gradient_are_torchs_own(dtype: torch.dtype, close: float) -> None:
    """In parts, with ignored labels, and of logits that are not numbers where nothing is asked."""
    torch.manual_seed(1)
    ours = (torch.randn(5, 301, 4000) * 3).to(dtype).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    labels = torch.randint(0, 4000, (5, 301))
    labels[0] = -100
    (compute_loss_sum(ours, labels) * 0.25).backward()
    wanted = cross_entropy(theirs.float().flatten(0, 1), labels.flatten(), reduction="sum")
    (wanted * 0.25).backward()
    assert compute_loss_sum(ours, labels).item() == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=close, atol=close / 100)
    with torch.no_grad():
        ours[0] = torch.nan
    assert torch.isfinite(compute_loss_sum(ours, labels))


# -- the rate --------------------------------------------------------------------------------------------------------


def rates(steps: int, **changed: object) -> list[float]:
    training = replace(TRAINING, **changed)  # type: ignore[arg-type]
    return [round(compute_learning_rate(training, step, steps), 6) for step in range(1, steps + 1)]


def test_the_schedules() -> None:
    """Warmup ends at the peak; each shape begins there, and ends a step before its floor."""
    assert rates(4, lr_scheduler_type="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(4, lr_scheduler_type="cosine") == [1, 0.853553, 0.5, 0.146447]
    assert rates(4, lr_scheduler_type="constant", warmup_steps=2) == [0.5, 1, 1, 1]
    assert rates(10, lr_scheduler_type="wsd", decay_ratio=0.4, warmup_ratio=0.2) == [
        0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25,
    ]  # fmt: skip
    assert rates(4, lr_scheduler_type="linear", min_lr_ratio=0.2) == [1, 0.8, 0.6, 0.4]


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(
    ("theirs", "options", "ours"),
    [
        ("cosine", {}, {}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}, {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}),
        ("cosine_with_restarts", {"num_cycles": 3}, {"num_cycles": 3}),
        ("linear", {}, {}),
        ("polynomial", {"power": 2.0, "lr_end": 0.05}, {"power": 2.0, "min_lr_ratio": 0.05}),
        ("inverse_sqrt", {}, {}),
        ("constant_with_warmup", {}, {"lr_scheduler_type": "constant"}),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 5, "decay_type": "linear"},
            {"lr_scheduler_type": "wsd", "decay_ratio": 0.25},
        ),
    ],
)
def test_the_shapes_are_those_of_transformers(
    theirs: str, options: dict[str, object], ours: dict[str, object], warmup: int
) -> None:
    """But for the warmup: ours is a step ahead, since theirs wastes the first step on a rate of 0."""
    from transformers import get_scheduler  # noqa: PLC0415 - slow, and only needed here

    steps = 20
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    schedule = get_scheduler(theirs, optimizer, warmup, steps, options).lr_lambdas[0]
    expected = [schedule(step if step <= warmup else step - 1) for step in range(1, steps + 1)]
    assert rates(steps, warmup_steps=warmup, **{"lr_scheduler_type": theirs, **ours}) == [
        round(rate, 6) for rate in expected
    ]


# -- ahead of time ---------------------------------------------------------------------------------------------------


def test_what_is_made_ahead_comes_in_order_and_errors_where_they_belong() -> None:
    """The thread's error is raised in place of the result that failed."""

    def make(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number * number

    seen: list[int] = []
    with Prefetcher(iter(range(10)), make) as ahead, pytest.raises(ValueError, match="five"):
        seen.extend(ahead)
    assert seen == [0, 1, 4, 9, 16]
    with Prefetcher(iter(range(4)), make) as ahead:
        assert list(ahead) == [0, 1, 4, 9]


def test_an_endless_plan_is_made_a_few_steps_ahead_and_ends_with_its_reader() -> None:
    """Who stops reading stops the thread."""
    asked = []

    def plan() -> Iterator[int]:
        number = 0
        while True:
            asked.append(number)
            yield number
            number += 1

    with Prefetcher(plan(), str) as ahead:
        assert next(iter(ahead)) == "0"
    assert not ahead._thread.is_alive()
    assert len(asked) <= 5


# -- time and words --------------------------------------------------------------------------------------------------


def test_the_ledger_knows_one_class_at_a_time() -> None:
    """What is nested is taken from what it is nested in."""
    clock = iter([0.0, 2.0, 3.0, 7.0, 8.0, 9.0])
    ledger = TimeLedger(lambda: next(clock))
    ledger.switch_to("data")
    with ledger.count_as("checkpoint"):
        pass
    taken = ledger.take()
    assert {kind: seconds for kind, seconds in taken.items() if seconds} == {"loading": 2, "data": 2, "checkpoint": 4}
    assert ledger.total()[1] == 9


def test_the_words_of_a_line() -> None:
    """Short enough to be read in passing."""
    line = {"step": 20, "steps": 100, "loss": 2.34567, "learning_rate": 2e-5, "grad_norm": 1.234, "mfu": 0.4}
    line |= {"tokens_per_second": 12345.0, "eta": 7200.0}
    assert (
        format_metrics(line)
        == "step 20/100 · loss 2.3457 · lr 2.00e-05 · norm 1.23 · 12.3k tokens/s · MFU 40% · 2 h left"
    )
    assert format_metrics({"step": 20, "steps": 100, "eval_loss": 2.0}) == "step 20/100 · eval loss 2.0000"
    spent = {"data": 1.0, "forward_backward": 98.5, "other": 0.5}
    ended = format_metrics({"step": 9, "steps": 9, "wall": 100.0, "seconds": spent})
    assert ended == "step 9/9 · ended after 1 min 40 s: forward + backward 98%, data 1%"
    spent |= {"forward_backward": 58.5, "starting": 20.0, "steps": 20.0}
    restarted = format_metrics({"step": 9, "steps": 9, "wall": 100.0, "seconds": spent})
    assert restarted == "step 9/9 · ended after 1 min 40 s: steps 80%, starting 20%"
