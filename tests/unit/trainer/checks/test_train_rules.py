"""What is refused when the nodes are known, and what is not."""

from dataclasses import replace
from typing import Any

import pytest

from aboard.core.plan.training_settings import Adapter, Training
from aboard.core.probes.probe import CommandOutput, ProbeParseError
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.gpu.diagnoses import CUDA
from aboard.trainer.checks.node_gpus import GpuSpec, parse_gpu_specs
from aboard.trainer.checks.subject import TRAIN
from aboard.trainer.checks.training_rules import ModelLimits, RankMemoryNeeds, TrainingPreflight, judge_training

TRAINING = Training(model="m", data=(), output_dir="/out", max_length=128, bf16=False)
GIB = 1024**3
A100 = GpuSpec(memory=80 * GIB, capability=8.0)
V100 = GpuSpec(memory=32 * GIB, capability=7.0)


def told(ranks: dict[str, int] | None = None, given: set[str] | None = None, **changes: Any) -> list[tuple[str, str]]:
    known = {
        field: changes.pop(field)
        for field in ("cards", "packages", "memory", "model", "tokens", "needs", "packed", "unusable_gpus")
        if field in changes
    }
    boarding = TrainingPreflight(
        training=replace(TRAINING, **changes), ranks=ranks or {"n1": 1}, given=frozenset(given or ()), **known
    )
    found = judge_training(boarding)
    assert {finding.code for finding in found} <= {story.code for story in TRAIN.diagnoses}
    assert all(finding.fix and finding.why for finding in found)
    return [(finding.code, finding.seen) for finding in found]


def test_what_fits_is_let_through() -> None:
    """Also where little is known of the nodes."""
    assert told({"n1": 2, "n2": 2}, sharding="hybrid") == []
    assert told({"n1": 3, "n2": 1}, global_batch_size=10) == []
    assert told({"n1": 2}, {"gradient_accumulation_steps"}, global_batch_size=8, gradient_accumulation_steps=4) == []


def test_a_global_batch_that_is_smaller_than_the_ranks() -> None:
    """Some would do nothing."""
    assert told({"n1": 4, "n2": 4}, global_batch_size=6) == [
        ("train-batch", "global_batch_size is 6, but there are 8 ranks")
    ]
    training = replace(TRAINING, global_batch_size=6)
    (finding,) = judge_training(TrainingPreflight(training=training, ranks={"n1": 2, "n2": 2, "n3": 2, "n4": 2}))
    assert finding.fix == "--set train.global_batch_size=8    # or fewer ranks: --include n1@n2@n3"


def test_a_global_batch_that_is_not_reached() -> None:
    """Where the three are all written, they must agree."""
    (found,) = told({"n1": 2}, {"gradient_accumulation_steps"}, global_batch_size=10, gradient_accumulation_steps=2)
    assert found == ("train-batch", "global_batch_size is 10, but 2 ranks × micro-batch 1 × 2 accumulation steps is 4")


def test_gpus_that_torch_cannot_use_stop_a_training() -> None:
    """Each such node by name; not with `device: cpu`, and not on a node without ranks."""
    broken = {name: CUDA.finding(nodes=(name,), seen="a CPU build", fix=CUDA.fix("cpu")) for name in ("n2", "n3")}
    preflight = TrainingPreflight(training=TRAINING, ranks={"n1": 2, "n2": 2, "n3": 0}, unusable_gpus=broken)
    (finding,) = judge_training(preflight)
    assert (finding.code, finding.nodes, finding.severity) == ("gpu-cuda", ("n2",), Severity.BLOCK)
    assert judge_training(replace(preflight, training=replace(TRAINING, device="cpu"))) == []


def test_nodes_with_and_without_gpus_do_not_train_together() -> None:
    """The head asks for GPUs where any node has some; then those without are named."""
    cards = {"n1": (A100,), "n2": ()}
    seen = "n2 has no GPU, but other nodes of this run have GPUs"
    assert told({"n1": 1, "n2": 1}, cards=cards, device="cuda") == [("train-device", seen)]
    assert told({"n1": 1, "n2": 1}, cards=cards, device="cpu") == []


def test_hybrid_on_uneven_slots() -> None:
    """And on nodes of one rank each; a single node of several is fine."""
    (found,) = told({"n1": 2, "n2": 1}, sharding="hybrid")
    assert found == (
        "train-hybrid",
        "sharding is hybrid, but nodes have different numbers of ranks: n1 has 2, n2 has 1",
    )
    assert told({"n1": 1, "n2": 1}, sharding="hybrid")[0][0] == "train-hybrid"
    assert told({"n1": 4}, sharding="hybrid") == []


def test_flash_attention_on_a_cpu() -> None:
    """Only where it is known that there is no GPU, or an old one."""
    assert told(attn_implementation="flash_attention_2", cards={"n1": ()})[0][0] == "train-attention"
    assert told(attn_implementation="flash_attention_2", cards={"n1": (V100,)})[0][0] == "train-attention"
    assert told(attn_implementation="flash_attention_2") == []
    assert told(attn_implementation="flash_attention_2", cards={"n1": (A100,)}) == []


def test_bfloat16_on_old_gpus_is_a_warning() -> None:
    """It runs, slowly."""
    assert told(bf16=True, cards={"n1": (A100, V100)})[0][0] == "train-bf16"
    assert told(bf16=True, cards={"n1": (A100,)}) == []
    assert told(bf16=True, cards={"n1": ()}) == []
    assert told(fp16=True, cards={"n1": (V100,)}) == []


def test_packages_that_a_node_lacks() -> None:
    """Told once for all nodes that lack the same."""
    full = {"torch": "2.13.0", "transformers": "5.22", "safetensors": "0.8", "numpy": "2.0"}
    bare = {"numpy": "2.0"}
    (found,) = told({"n1": 1, "n2": 1, "n3": 1}, packages={"n1": full, "n2": bare, "n3": bare})
    assert found == ("train-packages", "Python on n[2-3] doesn't have torch, transformers or safetensors")
    (found,) = told({"n1": 1}, packages={"n1": full}, adapter=Adapter())
    assert found == ("train-packages", "Python on n1 doesn't have peft")
    (found,) = told({"n1": 1}, packages={"n1": full | {"peft": "0.21"}}, adapter=Adapter(load_in_4bit=True))
    assert found == ("train-packages", "Python on n1 doesn't have bitsandbytes")


def test_frozen_weights_of_a_third_type() -> None:
    """They would be rounded twice; float32 and the compute type are fine."""
    (found,) = told(adapter=Adapter(base_dtype="bfloat16"))
    assert found == ("adapter-base-type", "adapter.base_dtype is bfloat16, but the run computes in float32")
    assert told(bf16=True, adapter=Adapter(base_dtype="float32"), cards={"n1": (A100,)}) == []
    assert told(bf16=True, adapter=Adapter(base_dtype="bfloat16"), cards={"n1": (A100,)}) == []


def test_positions_and_tokens_that_the_model_has_not() -> None:
    """Both end in an index error in the middle of a run."""
    assert told(model=ModelLimits(positions=64))[0][0] == "train-length"
    assert told(model=ModelLimits(vocabulary=100), tokens=101)[0][0] == "train-vocabulary"
    assert told(model=ModelLimits(vocabulary=100, positions=128), tokens=100) == []


@pytest.mark.parametrize(
    ("needs", "severity"),
    [
        (RankMemoryNeeds(states=90 * GIB, total=95 * GIB), Severity.BLOCK),
        (RankMemoryNeeds(states=70 * GIB, total=95 * GIB), Severity.WARN),
        (RankMemoryNeeds(states=70 * GIB, total=75 * GIB), None),
    ],
)
def test_memory_that_is_not_there(needs: RankMemoryNeeds, severity: Severity | None) -> None:
    """What is plain arithmetic stops it; what is an estimate warns."""
    boarding = TrainingPreflight(training=TRAINING, ranks={"n1": 2}, cards={"n1": (A100, A100)}, needs=needs)
    assert [finding.severity for finding in judge_training(boarding)] == ([severity] if severity else [])


def test_ranks_on_a_cpu_share_the_memory_of_their_node() -> None:
    """And a node of which nothing is known is not judged."""
    needs = RankMemoryNeeds(states=5 * GIB, total=6 * GIB, fits=(Untrusted("--set train.sharding=full"),))
    asked: dict[str, Any] = {"training": TRAINING, "cards": {"n1": ()}, "memory": {"n1": 8 * GIB}, "needs": needs}
    assert judge_training(TrainingPreflight(ranks={"n1": 1}, **asked)) == []
    (found,) = judge_training(TrainingPreflight(ranks={"n1": 2}, **asked))
    assert found.seen == "a rank needs 6 GiB, but n1 has 8 GiB for 2 ranks, 4 GiB each"
    assert found.fix == "--set train.sharding=full"
    assert judge_training(TrainingPreflight(training=TRAINING, ranks={"n9": 2}, needs=needs)) == []
    tight = replace(needs, states=4 * GIB, total=4 * GIB)
    assert judge_training(TrainingPreflight(ranks={"n1": 2}, **{**asked, "needs": tight})) == []
    (found,) = judge_training(TrainingPreflight(ranks={"n1": 2}, standbys=True, **{**asked, "needs": tight}))
    assert found.seen.endswith("n1 has 8 GiB for 2 ranks, 3.7 GiB each without 320 MiB for a standby")


def test_memory_that_is_needed_and_memory_that_is_there_are_both_said() -> None:
    """Also where the trainer tells what the need is made of; nodes that are alike are named together."""
    needs = RankMemoryNeeds(states=90 * GIB, total=95 * GIB, says=Untrusted("6.7B, whole on every rank: states 90 GiB"))
    boarding = TrainingPreflight(
        training=TRAINING,
        ranks={"n1": 1, "n2": 1, "n3": 2, "big": 1},
        cards={"n1": (V100,), "n2": (V100,), "n3": (), "big": ()},
        memory={"n3": 64 * GIB, "big": 256 * GIB},
        needs=needs,
    )
    (found,) = judge_training(boarding)
    assert found.nodes == ("n1", "n2", "n3")
    assert found.seen == (
        "a rank needs 95 GiB (6.7B, whole on every rank: states 90 GiB), but n[1-2] have 32 GiB per GPU;"
        " n3 has 64 GiB for 2 ranks, 32 GiB each"
    )


def test_cards_as_nvidia_smi_lists_them() -> None:
    """None without its tools, an unknown for what can't be read."""
    assert parse_gpu_specs(CommandOutput(code=0, stdout="81920, 8.0, 81000\n81920, 8.0, 81000\n"))[1].memory == 80 * GIB
    assert parse_gpu_specs(CommandOutput(code=127, stdout="")) == ()
    assert parse_gpu_specs(CommandOutput(code=6, stdout="No devices were found\n")) == ()
    with pytest.raises(ProbeParseError):
        parse_gpu_specs(CommandOutput(code=0, stdout="what?\n"))
    with pytest.raises(ProbeParseError):
        parse_gpu_specs(CommandOutput(code=0, stdout="", timed_out=True))


def test_packed_data_for_a_model_that_can_not_keep_documents_apart() -> None:
    """Refused before a rank exists; one document a sequence is fine, and so is a model of which nothing is known."""
    odd = RankMemoryNeeds(states=1, total=1, why_not_apart=Untrusted("its forward method takes no position_ids"))
    (found,) = told(needs=odd, packed=True)
    assert found[0] == "train-packing-unknown"
    assert told(needs=odd, packed=False) == []
    assert told(needs=replace(odd, why_not_apart=None), packed=True) == []
    assert told(packed=True) == []


def test_a_chunked_loss_of_a_model_that_can_not_have_one() -> None:
    """Refused before a rank exists, in the trainer's words."""
    why = "chunked_loss can't be used with an XForCausalLM: its logits are changed by aten.slice.Tensor"
    (found,) = told(needs=RankMemoryNeeds(states=1, total=1, why_not_chunked=Untrusted(why)))
    assert found[0] == "train-chunked-loss"
