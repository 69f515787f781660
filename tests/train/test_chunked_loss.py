"""With chunked_loss, training is the same as without it, and no tensor has all logits."""

import random
from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pytest
import torch
from live_bytes import LiveByteCounter
from tiny import tiny_data
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from train_cases import curve, lines, trained, trained_in_chunks
from train_crew import Crew
from train_reference import references
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import AboardError
from aboard.trainer.memory.worker import answer_request
from aboard.trainer.model import chunked_loss
from aboard.trainer.model.chunked_loss import count_chunk_rows, enable_chunked_loss, find_chunking_obstacle
from aboard.trainer.model.loss import compute_loss_sum

CLOSE = 1e-5
IGNORED = -100


# -- whole trainings --------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    family: str
    world: int
    sharding: str
    packing: str

    @property
    def nodes(self) -> int:
        return 2 if self.sharding == "hybrid" else 1


# Tied and not; gemma2 caps its logits.
CASES = [
    Case(family, world, sharding, packing)
    for family in ("llama", "qwen2", "gemma2", "mistral")
    for world, sharding in ((1, "none"), (2, "none"), (2, "full"), (4, "full"), (4, "hybrid"))
    for packing in ("packed", "padded")
]
EVERY_TIME = {
    Case("llama", 2, "full", "packed"),
    Case("qwen2", 2, "none", "padded"),
    Case("gemma2", 1, "none", "packed"),
    Case("gemma2", 4, "hybrid", "padded"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(map(str, case)), marks=[] if case in EVERY_TIME else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_the_curve_is_that_of_one_process(case: Case, settled: Callable[..., Training], crew: Crew) -> None:
    """In chunks of seven positions, on any layout, losses and gradient norms are those of a plain single process."""
    training = settled(
        case.family,
        case.packing,
        sharding=case.sharding,
        chunked_loss=True,
        global_batch_size=7,
        max_steps=5,
        per_device_train_batch_size=2,
    )
    ((truth,),) = crew.run(1, references, [(training, 7)])
    crew.run(case.world, trained_in_chunks, training, nodes=case.nodes)
    assert curve(training) == [pytest.approx(step, rel=CLOSE) for step in truth]


@pytest.mark.parametrize(
    ("world", "sharding"), [(1, "none"), pytest.param(2, "none", marks=pytest.mark.nightly), (2, "full")]
)
def test_bf16_is_that_of_the_plain_loss(
    world: int, sharding: str, settled: Callable[..., Training], crew: Crew, tmp_path: Any
) -> None:
    """Under autocast, and with weights gathered in bf16; after more steps, roundings grow beyond this bar."""
    plain = settled("gemma2", bf16=True, sharding=sharding, global_batch_size=4, max_steps=2)
    chunked = settled(
        "gemma2",
        bf16=True,
        sharding=sharding,
        global_batch_size=4,
        max_steps=2,
        chunked_loss=True,
        output_dir=str(tmp_path / "chunked"),
    )
    crew.run(world, trained, plain)
    crew.run(world, trained_in_chunks, chunked)
    assert curve(chunked) == [pytest.approx(step, rel=1e-3) for step in curve(plain)]


@pytest.mark.parametrize(
    ("world", "sharding", "head"),
    [
        (2, "full", "frozen"),
        pytest.param(1, "none", "frozen", marks=pytest.mark.nightly),
        pytest.param(2, "none", "modules_to_save", marks=pytest.mark.nightly),
        pytest.param(2, "full", "modules_to_save", marks=pytest.mark.nightly),
        pytest.param(1, "none", "lora", marks=pytest.mark.nightly),
        pytest.param(2, "full", "lora", marks=pytest.mark.nightly),
    ],
)
def test_an_adapter_is_trained_the_same(
    world: int, sharding: str, head: str, settled: Callable[..., Training], crew: Crew, tmp_path: Any
) -> None:
    """Beside a frozen head, with one that is trained in full, and with one that has an adapter itself."""
    adapter = {
        "frozen": Adapter(r=4),
        "modules_to_save": Adapter(r=4, modules_to_save=("lm_head",)),
        "lora": Adapter(r=4, target_modules=("q_proj", "lm_head")),
    }[head]
    given = {"adapter": adapter, "sharding": sharding, "global_batch_size": 4, "max_steps": 4}
    plain = settled("qwen2", **given)
    chunked = settled("qwen2", **given, chunked_loss=True, output_dir=str(tmp_path / "chunked"))
    crew.run(world, trained, plain)
    crew.run(world, trained_in_chunks, chunked)
    assert curve(chunked) == [pytest.approx(step, rel=CLOSE) for step in curve(plain)]


def test_an_evaluation_has_the_same_loss(
    settled: Callable[..., Training], shelf: Any, crew: Crew, tmp_path: Any
) -> None:
    """On two ranks with sharded weights, without gradients."""
    validation = (tiny_data(shelf / "validation", "packed", documents=40, name="validation", seed=2),)
    given = {"validation": validation, "sharding": "full", "max_steps": 2}
    plain = settled("gemma2", **given)
    chunked = settled("gemma2", **given, chunked_loss=True, output_dir=str(tmp_path / "chunked"))
    crew.run(2, trained, plain)
    crew.run(2, trained_in_chunks, chunked)
    (wanted,), (found,) = (
        [each["eval_loss"] for each in lines(one) if "eval_loss" in each] for one in (plain, chunked)
    )
    assert found == pytest.approx(wanted, rel=CLOSE)


# -- the loss itself --------------------------------------------------------------------------------------------------


class Scored(nn.Module):
    """A head alone, whose logits the "model" changes as given."""

    def __init__(
        self, hidden: int, vocabulary: int, *, bias: bool, change: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, vocabulary, bias=bias)
        self.change = change

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, *, hidden: Tensor) -> Any:
        logits = self.head(hidden)
        return SimpleNamespace(logits=logits if self.change is None else self.change(logits))


CHANGES: tuple[Callable[[Tensor], Tensor] | None, ...] = (
    None,
    lambda logits: torch.tanh(logits / 3.0) * 3.0,
    lambda logits: (logits * 0.25).float(),
)


@pytest.mark.parametrize("seed", range(20))
def test_loss_and_gradients_are_torchs_own(seed: int) -> None:
    """Of random shapes, labels and chunks: nothing supervised, no rows, a logit of -inf, a frozen head."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    torch.manual_seed(seed)
    rows, width, vocabulary = (
        (draw.randint(1, 3), draw.randint(0 if seed % 5 == 4 else 1, 40)),
        draw.randint(1, 33),
        draw.randint(2, 99),
    )
    model = Scored(width, vocabulary, bias=bool(seed % 2), change=draw.choice(CHANGES))
    if seed % 3 == 0:
        model.head.requires_grad_(requires_grad=False)
    elif model.head.bias is not None:
        with torch.no_grad():
            model.head.bias[0] = -torch.inf
    hidden = torch.randn(*rows, width, requires_grad=True)
    labels = torch.randint(1, vocabulary, rows)
    labels[torch.rand(rows) < draw.choice((0.0, 0.5, 1.0))] = IGNORED
    wanted = cross_entropy(model(hidden=hidden).logits.flatten(0, -2), labels.flatten(), reduction="sum")
    inputs = [hidden, *(each for each in model.parameters() if each.requires_grad)]
    truth = torch.autograd.grad(wanted * 0.5, inputs)
    enable_chunked_loss(cast("PreTrainedModel", model))
    with patch.dict(chunked_loss._ELEMENTS, cpu=draw.randint(1, 7) * vocabulary):
        loss = cast("Any", model)(hidden=hidden, labels=labels)
        found = torch.autograd.grad(loss * 0.5, inputs)
        with torch.no_grad():
            assert torch.equal(cast("Any", model)(hidden=hidden, labels=labels), loss.detach())
    torch.testing.assert_close(loss, wanted, rtol=CLOSE, atol=CLOSE)
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=CLOSE, atol=CLOSE)


def test_logits_never_exist_as_a_whole() -> None:
    """The peak of a forward and a backward is below the size of the logits, of which the plain loss has two."""
    rows, width, vocabulary = 4096, 8, 4000
    whole = rows * vocabulary * 4
    peaks = {}
    for chunked in (True, False):
        model = cast("Any", Scored(width, vocabulary, bias=False))
        hidden, labels = torch.randn(rows, width, requires_grad=True), torch.randint(0, vocabulary, (rows,))
        enable_chunked_loss(model)
        with LiveByteCounter() as meter, patch.dict(chunked_loss._ELEMENTS, cpu=1 << 20):
            loss = (
                model(hidden=hidden, labels=labels)
                if chunked
                else compute_loss_sum(model(hidden=hidden).logits, labels)
            )
            loss.backward()
            bound = 5 * count_chunk_rows(vocabulary, "cpu") * vocabulary * 4
        peaks[chunked] = meter.peak
    assert peaks[True] < bound < whole < peaks[False] / 2


# -- models that it can't be used with -------------------------------------------------------------------------------


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "aten.slice": lambda logits: logits[..., :-1],
    "aten.add": lambda logits: logits + torch.ones(logits.shape[-1], device=logits.device),
    "softmax": lambda logits: logits.log_softmax(-1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_changes_of_logits_are_refused(name: str) -> None:
    """What is not elementwise would be something else for a chunk."""
    model = Scored(4, 9, bias=False, change=REFUSED[name])
    enable_chunked_loss(cast("PreTrainedModel", model))
    with pytest.raises(AboardError, match=f"can't be used with a Scored: its logits are changed by .*{name}") as caught:
        cast("Any", model)(hidden=torch.randn(3, 4), labels=torch.zeros(3, dtype=torch.int64))
    assert caught.value.code == "train-chunked-loss"


@pytest.mark.parametrize("family", ["llama", "gemma2", "granite", "cohere", "gpt2", "llama4_text", "qwen3_moe"])
def test_most_models_are_not_refused(family: str) -> None:
    """Scaled and capped logits can be computed in chunks, and the model is left as it was."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, num_hidden_layers=1))
    before = [set(vars(each)) for each in model.modules()]
    with patch.object(chunked_loss, "_run_deferred", wraps=chunked_loss._run_deferred) as probed:
        assert find_chunking_obstacle(model) is None
    assert probed.call_count == 1
    assert [set(vars(each)) for each in model.modules()] == before


def test_a_refusal_is_known_before_nodes_are_claimed(settled: Callable[..., Training]) -> None:
    """The memory worker's reply has the reason, if chunked_loss is set."""
    plain = LlamaForCausalLM.forward

    def forward(self: LlamaForCausalLM, **inputs: Any) -> Any:
        output = plain(self, **inputs)
        output.logits = output.logits[..., :-1]
        return output

    with patch.object(LlamaForCausalLM, "forward", forward):
        replies = [
            answer_request({"training": asdict(settled(chunked_loss=chunked)), "ranks": {"n1": 1}})
            for chunked in (True, False)
        ]
    assert "its logits are changed by aten.slice.Tensor" in replies[0]["why_not_chunked"]
    assert replies[1]["why_not_chunked"] is None
