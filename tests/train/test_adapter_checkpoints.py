"""Checkpoints of a LoRA run: only what is trained, and continued exactly by any layout, on the same base weights."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest
import save_cases
from node_homes import HomeTransport
from tiny import tiny_model
from train_cases import curve, lines, touched, trained
from train_crew import Crew

from aboard.commands.train.checkpoints.gather_checkpoint import GatheredCheckpoint, GatherRequest, gather_checkpoint
from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedCheckpoint, RecordedTraining
from aboard.commands.train.checkpoints.share_checkpoint import ShareProgress, ShareRequest, share_checkpoint
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.plan.training_settings import Adapter, Sharding, Training
from aboard.trainer.checkpoint.commit_marker import CommitMarker, parse_marker
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.model.export import main as export
from aboard.trainer.progress import TrainingProgress
from aboard.transport.node_dialer import NodeDialer

Settled = Callable[..., Training]
CLOSE = 1e-5
STEPS, BATCH = 6, 4
KINDS: dict[str, Adapter] = {
    "lora": Adapter(r=4, alpha=8.0, target_modules=("q_proj", "down_proj")),
    "dora": Adapter(r=4, alpha=8.0, use_dora=True),
    "head": Adapter(r=4, alpha=8.0, use_rslora=True, modules_to_save=("lm_head",)),
}


class Layout(NamedTuple):
    world: int
    nodes: int
    sharding: Sharding


ONE, TWO = Layout(1, 1, "none"), Layout(2, 1, "none")
FULL, FULL4, HYBRID = Layout(2, 1, "full"), Layout(4, 1, "full"), Layout(4, 2, "hybrid")
# Each kind and each layout once every time, the rest of the matrix at night.
OFTEN = {("lora", FULL, ONE), ("dora", ONE, FULL), ("head", HYBRID, TWO)}
CASES = [
    pytest.param(kind, before, after, marks=[] if (kind, before, after) in OFTEN else pytest.mark.nightly)
    for kind in KINDS
    for before, after in [(FULL, ONE), (ONE, FULL), (HYBRID, TWO), (TWO, HYBRID), (FULL4, HYBRID), (TWO, FULL4)]
]


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, tuple[list[tuple[float, float]], TrainingProgress]]:
    """By kind of adapter, the curve of one rank and where it ended; filled by the first test that asks."""
    return {}


@pytest.mark.parametrize(("kind", "before", "after"), CASES)
def test_a_resume_on_other_ranks_continues_the_curve(
    crew: Crew,
    settled: Settled,
    uninterrupted: dict[str, tuple[list[tuple[float, float]], TrainingProgress]],
    kind: str,
    before: Layout,
    after: Layout,
) -> None:
    """Losses, gradient norms and samples are those of one rank that never stopped."""
    training = settled("qwen2", adapter=KINDS[kind], max_steps=STEPS, global_batch_size=BATCH)
    if kind not in uninterrupted:
        alone = replace(training, output_dir=f"{training.output_dir}-alone")
        crew.run(1, trained, alone)
        uninterrupted[kind] = curve(alone), last_progress(alone)
    begun = touched(replace(training, sharding=before.sharding), "STOP")
    assert set(crew.run(before.world, trained, begun, nodes=before.nodes)) == {"STOP"}
    assert 0 < last_progress(training).step < STEPS
    crew.run(after.world, trained, replace(training, sharding=after.sharding), nodes=after.nodes)
    expected, end = uninterrupted[kind]
    assert [line["step"] for line in lines(training) if "loss" in line] == list(range(1, STEPS + 1))
    for found, usual in zip(curve(training), expected, strict=True):
        assert found == pytest.approx(usual, rel=CLOSE)
    assert last_progress(training) == end


def last_progress(training: Training) -> TrainingProgress:
    return TrainingProgress.of(last_marker(training).progress)


def last_marker(training: Training) -> CommitMarker:
    newest = max(Path(training.output_dir).glob("step-*/manifest.json"))
    return parse_marker(newest.read_bytes())


def test_only_what_is_trained_is_saved(crew: Crew, settled: Settled) -> None:
    """The adapter's tensors and their optimizer states by the names of the model; the base is named by its weights."""
    training = settled("qwen2", adapter=KINDS["head"], max_steps=1, sharding="full")
    crew.run(2, trained, training)
    marker = last_marker(training)
    names = {name.removeprefix("model/") for name in marker.tensors if name.startswith("model/")}
    assert "model.layers.0.self_attn.q_proj.lora_A.default.weight" in names
    assert "lm_head.modules_to_save.default.weight" in names
    assert all("lora_" in name or "modules_to_save" in name for name in names)
    states = {name.removeprefix("optimizer/").rpartition("/")[0] for name in marker.tensors} - {"model"}
    assert {name for name in states if not name.startswith("model/")} == names
    assert len(marker.base) == 32


@pytest.fixture(scope="module")
def saved(crew: Crew, shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A LoRA run of one step."""
    folder = tmp_path_factory.mktemp("differing")
    training = Training(
        model=str(shelf / "qwen2"), data=(), output_dir=str(folder), max_length=48, adapter=KINDS["lora"], bf16=False
    )
    crew.run(1, save_cases.save, training, 1)
    return training


def test_other_base_weights_are_refused(crew: Crew, saved: Training, tmp_path: Path) -> None:
    """The same shape with other values; a copy with another tokenizer is the same base."""
    same, other = tmp_path / "same", tmp_path / "other"
    copytree(saved.model, same)
    (same / "tokenizer_config.json").write_text("{}")
    copytree(saved.model, other)
    data = bytearray((other / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (other / "model.safetensors").write_bytes(data)
    (came,) = crew.run(1, save_cases.resume, replace(saved, model=str(other)))
    assert came.error is not None
    assert came.error[0] == "checkpoint-differs"
    assert "these adapters were trained on other base weights" in came.error[1]
    (came,) = crew.run(1, save_cases.resume, replace(saved, model=str(same)))
    assert came.error is None


def test_a_checkpoint_without_a_base_resumes(crew: Crew, saved: Training, tmp_path: Path) -> None:
    """Those of earlier versions name neither base nor state."""
    copytree(saved.output_dir, tmp_path / "old")
    path = tmp_path / "old" / "step-000001" / "manifest.json"
    lines = path.read_text().splitlines(keepends=True)[1:]
    body = "".join(line for line in lines if not line.startswith(('"base"', '"state"')))
    path.write_text(f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}')
    assert SavedCheckpoint.open(path.parent).marker.base == ""
    (came,) = crew.run(1, save_cases.resume, replace(saved, output_dir=str(tmp_path / "old")))
    assert came.error is None
    assert came.progress is not None


@pytest.mark.parametrize(
    ("changed", "said", "fix"),
    [
        ({"r": 8}, "adapter.r: 4 → 8: an adapter of different tensors", "--set train.adapter.r=4 "),
        ({"alpha": 16.0}, "adapter.alpha: 8.0 → 16.0: it scales the adapter's output", "--set train.adapter.alpha=8.0"),
        ({"use_rslora": True}, "adapter.use_rslora: False → True: it scales", "--set train.adapter.use_rslora=false"),
        ({"use_dora": True}, "adapter.use_dora: False → True: an adapter", "--set train.adapter.use_dora=false"),
        ({"target_modules": ("q_proj",)}, "adapter.target_modules: ['q_proj', 'down_proj'] → ['q_proj']", "restore"),
    ],
)
def test_another_adapter_is_refused(crew: Crew, saved: Training, changed: dict[str, Any], said: str, fix: str) -> None:
    """With the reason, and what to type to keep it."""
    assert saved.adapter is not None
    other = replace(saved, adapter=replace(saved.adapter, **changed))
    (came,) = crew.run(1, save_cases.resume, other)
    assert came.error is not None
    assert came.error[0] == "checkpoint-differs"
    assert said in came.error[1]
    assert came.error[2].startswith(fix)


def test_dropout_may_change(crew: Crew, saved: Training) -> None:
    """It is reported."""
    assert saved.adapter is not None
    (came,) = crew.run(1, save_cases.resume, replace(saved, adapter=replace(saved.adapter, dropout=0.1)))
    assert came.error is None
    assert "changed since the checkpoint: adapter.dropout: 0.0 → 0.1" in came.notes


def test_an_adapter_and_full_training_share_no_directory(crew: Crew, saved: Training, tmp_path: Path) -> None:
    """Neither continues the other, and the reason is plain."""
    (came,) = crew.run(1, save_cases.resume, replace(saved, adapter=None))
    assert came.error is not None
    assert "trained: an adapter → all weights: the checkpoint has an adapter, and this run trains all" in came.error[1]
    full = replace(saved, adapter=None, output_dir=str(tmp_path))
    crew.run(1, save_cases.save, full, 1)
    (came,) = crew.run(1, save_cases.resume, replace(full, adapter=KINDS["lora"]))
    assert came.error is not None
    assert "the checkpoint has all weights, and this run trains an adapter" in came.error[1]


def test_parts_travel_between_nodes(crew: Crew, saved: Training, tmp_path: Path) -> None:
    """Without a shared disk, another node gets the parts of two and continues; the head exports from the nodes."""
    training = replace(saved, sharding="full", global_batch_size=4)
    hashes = crew.run(2, save_cases.save, training, 2, str(tmp_path / "n{node}" / "out"), nodes=2)
    ran = build_plan({0: "n0", 1: "n1"})
    reported = RecordedCheckpoint(name="step-000002", serial=2)
    recorded = RecordedTraining(plans=(ran,), checkpoints={reported.name: reported})
    alone = replace(training, sharding="none", output_dir="~/out")
    sharing = ShareRequest(plan=build_plan({0: "n2"}), training=alone, recorded=recorded, cache=tmp_path / "cache")
    gathering = GatherRequest(
        run="brave-otter", folder="~/out", recorded=recorded, cache=tmp_path / "cache", to=tmp_path / "exported"
    )

    async def move() -> GatheredCheckpoint:
        dialer = NodeDialer(lambda _node: HomeTransport(tmp_path))
        try:
            await share_checkpoint(sharing, dialer, ShareProgress(receiving=unwatched, sending=unwatched))
            return await gather_checkpoint(gathering, dialer, lambda _progress: None)
        finally:
            await dialer.close()

    gathered = asyncio.run(move())
    (came,) = crew.run(1, save_cases.resume, alone, str(tmp_path / "n2" / "out"))
    assert came.hashes == hashes[0]
    exports = [tmp_path / "exported", tmp_path / "alike"]
    for folder, out in zip((gathered.path, tmp_path / "n2" / "out" / "step-000002"), exports, strict=True):
        assert crew.run(1, export, [str(folder), str(out)]) == [0]
    one, other = (out / "adapter_model.safetensors" for out in exports)
    assert one.read_bytes() == other.read_bytes()


def build_plan(ranks: Mapping[int, str]) -> Plan:
    parts = tuple(
        NodePlan(node=Node(name=node), starts=(Start(child=str(rank), argv=("python",), rank=rank),))
        for rank, node in ranks.items()
    )
    program = Program(kind=ProgramKind.SCRIPT, target="")
    return Plan(
        run="r", program=program, master=MasterAddress(node=next(iter(ranks.values())), address=""), parts=parts
    )


@contextmanager
def unwatched() -> Iterator[Any]:
    yield lambda _progress: None


@pytest.mark.nightly
def test_a_lora_checkpoint_is_small(crew: Crew, tmp_path: Path) -> None:
    """For 46 million weights and r = 16, a checkpoint takes 22 MB instead of 551: less than a tenth."""
    shape = {
        "vocab_size": 16000,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    crew.run(1, _make, tmp_path / "model", shape)
    sizes = {}
    for name, adapter in (("full", None), ("lora", Adapter(r=16))):
        out = tmp_path / name
        training = Training(
            model=str(tmp_path / "model"), data=(), output_dir=str(out), max_length=8, adapter=adapter, bf16=False
        )
        crew.run(1, save_cases.save, training, 1)
        sizes[name] = sum(file.bytes for file in last_marker(training).files)
    print(json.dumps(sizes))  # noqa: T201 - the numbers, for whoever asks with -s
    assert sizes["lora"] < sizes["full"] / 10


def _make(folder: Path, shape: dict[str, Any]) -> None:
    tiny_model(folder, "llama", **shape)
