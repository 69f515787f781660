"""What `aboard train` makes ready on the head: model, data behind the gate, code, and what ranks are told."""

import ast
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from random import Random
from shlex import join as shlex_join, split
from typing import Any
from zipfile import ZipFile

import pytest
from data_files import conversation, tokenizer, written

from aboard.agent.container.container_command import ContainerSpec, wrap_command
from aboard.commands.export.command import format_export
from aboard.commands.export.export_checkpoint import ExportReport, ExportRequest, ExportResult, export_checkpoint
from aboard.commands.launch.launch_view import format_finished_lines
from aboard.commands.shared.check_resume import TrainingFinished
from aboard.commands.shared.local_checkpoints import ChosenCheckpoint, find_checkpoint
from aboard.commands.train.fetch_model import fetch_model, read_model_facts
from aboard.commands.train.prepare_data import PreparedDataset, TrainingDatasets, prepare_training_data
from aboard.commands.train.prepare_training import build_resume_command, find_early_findings
from aboard.commands.train.trainer_process import TrainerProcess, ask_trainer
from aboard.commands.train.training_payload import (
    EstimateMemory,
    TrainingInputs,
    TrainingPayload,
    build_code_archive,
    build_request,
    has_bf16,
)
from aboard.config.this_machine import abbreviate_home, get_cache_folder
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.plan import MasterAddress, Plan
from aboard.core.plan.plan_builder import build_plan as make_plan
from aboard.core.plan.training_settings import DataPart, Training
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import CommandOutput, Probe, ProbeCommand
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError, Finding, Severity, format_shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.gpu.nvidia_smi import DRIVER, GpuDriver
from aboard.doctor.host.memory import MEMORY, MEMORY_CGROUPS, MemoryCgroup
from aboard.doctor.software.node_software import SOFTWARE
from aboard.record.runs import Runs
from aboard.trainer.checkpoint import commit_marker
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation
from aboard.trainer.checks.node_gpus import GPU_SPECS, GpuSpec
from aboard.trainer.checks.resumable_checkpoints import (
    CheckpointManifests,
    build_checkpoints_probe,
    find_newest_checkpoint,
)
from aboard.trainer.checks.training_rules import ModelLimits, RankMemoryNeeds, TrainingPreflight
from aboard.trainer.data.store.token_shards import TokenShards
from aboard.trainer.job_spec import read_job_spec
from aboard.trainer.settings.train_settings import TrainSettings, load_train_settings
from aboard.trainer.weights.model_files import identify_weights

GIB = 1024**3
IDENTITY = "d" * 64
# What was typed; settings in it give way to those of a fix.
TYPED = format_shell(
    "aboard train 'n[1-2]' --set train.max_steps=1 --set train.gradient_accumulation_steps=9 --set a=b"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(text: str = "", rows: int = 40) -> TrainSettings:
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps({"vocab_size": 1000, "max_position_embeddings": 512}))
    if not Path("train.jsonl").exists():
        written(Path("train.jsonl"), map(conversation, range(rows)))
    held = ", validation: held.jsonl" if Path("held.jsonl").exists() else ""
    data = f"data: {{files: train.jsonl, tokenizer: ./tok, max_length: 128{held}}}\n"
    Path("aboard.yaml").write_text(data + (text or "train: {model: ./model}\n"))
    return load_train_settings(["aboard.yaml"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that don't look at what is in it: rows that several of them have are tokenized once."""
    return tmp_path_factory.mktemp("cache")


def prepared(found: TrainSettings, cache: Path = Path("cache"), typed: str = "aboard train") -> TrainingDatasets:
    if not Path("tok").exists():
        tokenizer(Path("tok"))
    command = quote_typed_words(typed.split())
    return prepare_training_data(found, found.tokenizer, cache.absolute(), template=None, command=command)


# -- the model -------------------------------------------------------------------------------------------------------


def test_a_model_that_is_a_directory_is_taken_as_it_is() -> None:
    """With what its config says of it; of a model of several parts, the part that reads text."""
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps({"text_config": {"vocab_size": 7, "max_position_embeddings": 9}}))
    Path("m/model.safetensors").write_bytes(b"")
    assert fetch_model("m", from_scratch=False) == Path("m")
    assert read_model_facts(Path("m")) == ModelLimits(vocabulary=7, positions=9)


def test_a_directory_that_is_no_model() -> None:
    """No config, no weights, weights of another format: each is said, with what to type."""
    Path("m").mkdir()
    with pytest.raises(AboardError, match=r"no config\.json"):
        fetch_model("m", from_scratch=True)
    Path("m/config.json").write_text("{}")
    assert fetch_model("m", from_scratch=True) == Path("m")
    with pytest.raises(AboardError, match="has no safetensors") as caught:
        fetch_model("m", from_scratch=False)
    assert "from_scratch: true" in caught.value.fix
    Path("m/pytorch_model.bin").write_bytes(b"")
    with pytest.raises(AboardError, match=r"only pytorch_model\.bin") as caught:
        fetch_model("m", from_scratch=False)
    assert caught.value.fix == (
        "python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('m').save_pretrained('m')\""
        "    # writes safetensors"
    )


def test_a_model_directory_of_any_name_is_one_string_of_the_command() -> None:
    """A shell and Python give the name back as it is, and run nothing that it holds."""
    folder = Path('it\'s "$(touch evil)" `touch evil`\\n!! é\n;')
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(AboardError) as caught:
        fetch_model(str(folder), from_scratch=False)
    transformers = Path("transformers.py")
    transformers.write_text(
        "class AutoModelForCausalLM:\n"
        "    from_pretrained = classmethod(lambda cls, name: cls())\n"
        "    def save_pretrained(self, name): print(ascii(name))\n"
    )
    told = subprocess.run(["sh", "-c", caught.value.fix], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ascii(str(folder))
    assert not Path("evil").exists()


@pytest.mark.ci
def test_a_model_of_the_hub_is_fetched_once() -> None:
    """What is in the hub's cache is used without a network; what isn't is an error that says both."""
    # In a process of its own: the hub's client reads its settings when it is imported.
    snapshot = Path("hf/hub/models--org--tiny/snapshots/abc")
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"")
    refs = Path("hf/hub/models--org--tiny/refs")
    refs.mkdir()
    (refs / "main").write_text("abc")
    source = (
        "import sys\nfrom aboard.commands.train.fetch_model import fetch_model\nprint(fetch_model(sys.argv[1],"
        " from_scratch=False))"
    )
    env = {**os.environ, "HF_HOME": str(Path("hf").absolute()), "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, "-c", source]
    found = subprocess.run([*argv, "org/tiny"], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == str(snapshot.absolute())
    lost = subprocess.run([*argv, "org/none"], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert "there is no directory 'org/none', and no such model can be downloaded from the Hub" in lost.stderr


# -- the data --------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_data_is_read_once() -> None:
    """The second time it is found, and judged all the same; a file that has changed is read anew."""
    found = prepared(words())
    assert (found.data[0].documents, found.data[0].cached, found.is_blocked) == (40, False, False)
    again = prepared(words())
    assert (again.data[0].shards, again.data[0].cached) == (found.data[0].shards, True)
    assert again.report.statistics.rows == found.report.statistics.rows == 40
    written(Path("train.jsonl"), map(conversation, range(41)))
    assert prepared(words()).data[0].documents == 41


@pytest.mark.ci
def test_the_gate_is_shut_or_opened_knowingly() -> None:
    """By `data.allow`, also for data that is in the cache already; a code that is none is refused before any work."""
    written(Path("train.jsonl"), [*map(conversation, range(40)), "{"])
    shut = prepared(words())
    assert shut.is_blocked
    assert [finding.code for finding in shut.report.findings] == ["data-broken"]
    text = Path("aboard.yaml").read_text()
    Path("aboard.yaml").write_text(text.replace("max_length: 128", "max_length: 128, allow: [data-broken]"))
    opened = prepared(load_train_settings(["aboard.yaml"]))
    assert (opened.is_blocked, opened.data[0].documents, opened.data[0].cached) == (False, 40, True)
    Path("aboard.yaml").write_text(text.replace("max_length: 128", "max_length: 128, allow: [data-brokn]"))
    with pytest.raises(AboardError) as caught:
        prepared(load_train_settings(["aboard.yaml"]))
    assert "did you mean 'data-broken'?" in caught.value.fix


@pytest.mark.ci
def test_the_suggested_commands_start_the_training_that_the_data_check_stopped(cache: Path) -> None:
    """They repeat what was typed, and keep the codes that were accepted before."""
    written(Path("bad.jsonl"), [*map(conversation, [*range(40), *range(40)]), "{"])
    words()
    sets, typed = ["data.files=bad.jsonl"], "aboard train n1 --set data.files=bad.jsonl"
    for code in ("data-broken", "data-duplicates"):
        found = prepared(load_train_settings(["aboard.yaml"], sets), cache, typed)
        assert found.is_blocked
        fix = next(finding.fix for finding in found.report.findings if finding.code == code)
        line = next(line for line in fix.splitlines() if "if this is intended" in line)
        assert line.startswith(f"{typed} --set")
        again = split(line.partition("#")[0])
        sets, typed = [again[place + 1] for place, word in enumerate(again) if word == "--set"], shlex_join(again)
    assert not prepared(load_train_settings(["aboard.yaml"], sets), cache).is_blocked


@pytest.mark.ci
def test_a_validation_that_is_trained_on_is_found(cache: Path) -> None:
    """Rows of both are compared, without reading them again."""
    words()
    text = Path("aboard.yaml").read_text()
    Path("aboard.yaml").write_text(text.replace("max_length", "validation: train.jsonl, max_length"))
    found = prepared(load_train_settings(["aboard.yaml"]), cache)
    assert found.is_blocked
    assert "data-leak" in [finding.code for finding in found.report.findings]
    assert found.validation is not None


def held_out(rows: Sequence[int], share: str, cache: Path, packing: str = "true") -> TrainingDatasets:
    """Two weighted sources of these rows, of which a share is validation."""
    written(Path("train.jsonl"), map(conversation, rows[: len(rows) // 2]))
    written(Path("more.jsonl"), map(conversation, rows[len(rows) // 2 :]))
    words()
    files = "files: [{path: train.jsonl, weight: 1}, {path: more.jsonl, weight: 3}]"
    text = Path("aboard.yaml").read_text().replace("files: train.jsonl", files)
    Path("aboard.yaml").write_text(text.replace("max_length", f"validation: {share}, packing: {packing}, max_length"))
    return prepared(load_train_settings(["aboard.yaml"]), cache)


def contents(*parts: PreparedDataset | None) -> list[int]:
    shards = [TokenShards(part.shards) for part in parts if part is not None]
    return sorted(each.document(number).content for each in shards for number in range(len(each)))


@pytest.mark.ci
def test_a_share_of_the_data_is_the_validation_set(cache: Path) -> None:
    """By content alone: in any order, packed or padded, with equal rows on one side; the rest is what is trained on."""
    rows = [*range(60), *range(20)]
    found = held_out(rows, "20%", cache)
    held = found.validation
    assert held is not None
    assert held.documents + sum(part.documents for part in found.data) == 80
    assert 4 < held.documents < 30
    assert not set(contents(held)) & set(contents(*found.data))
    assert "data-leak" not in [finding.code for finding in found.report.findings]
    reported = [each for each in found.report.sources if each.validation]
    assert [each.path.raw() for each in reported] == ["20% of train.jsonl", "20% of more.jsonl"]
    assert sum(each.statistics.rows for each in reported) == held.documents
    again = held_out(rows, "20%", cache)
    assert (again.identity, [part.cached for part in again.data]) == (found.identity, [True, True])
    other = held_out(rows[::-1], "20%", cache, packing="false")
    assert contents(other.validation) == contents(held)
    more = held_out(rows, "40%", cache)
    assert set(contents(held)) < set(contents(more.validation))
    assert more.identity != found.identity
    with pytest.raises(AboardError, match=r"0\.001% of 80 training rows is not a single row"):
        held_out(rows, "0.001%", cache)


@pytest.mark.ci
def test_packing_is_obeyed(cache: Path) -> None:
    """Without it each row has a sequence of its own."""
    packed = prepared(words(), cache)
    text = Path("aboard.yaml").read_text().replace("max_length: 128", "max_length: 128, packing: false")
    Path("aboard.yaml").write_text(text)
    padded = prepared(load_train_settings(["aboard.yaml"]), cache)
    assert packed.data[0].sequences < 40 == padded.data[0].sequences


@pytest.mark.ci
def test_sources_of_a_mix_are_prepared_each_by_itself(cache: Path) -> None:
    """One that changes leaves the others in the cache; the gate judges all of them together."""
    words()
    written(Path("more.jsonl"), [*map(conversation, range(100, 110)), conversation(3)])
    text = Path("aboard.yaml").read_text()
    files = "files: [{path: train.jsonl, weight: 1}, {path: more.jsonl, weight: 3}]"
    Path("aboard.yaml").write_text(text.replace("files: train.jsonl", files))
    found = prepared(load_train_settings(["aboard.yaml"]), cache)
    assert [(part.name, part.documents, part.weight, part.share) for part in found.data] == [
        ("train", 40, 1.0, 0.25),
        ("more", 11, 3.0, 0.75),
    ]
    assert found.report.statistics.rows == 51
    assert "data-duplicates" in [finding.code for finding in found.report.findings]
    written(Path("more.jsonl"), map(conversation, range(100, 112)))
    again = prepared(load_train_settings(["aboard.yaml"]), cache)
    assert [part.cached for part in again.data] == [True, False]


@pytest.mark.ci
def test_a_weight_that_can_not_be_held_is_refused_before_any_work() -> None:
    """A millionth of the mix would never come in a training of a usual length."""
    words()
    written(Path("more.jsonl"), map(conversation, range(100, 110)))
    text = Path("aboard.yaml").read_text()
    files = "files: [{path: train.jsonl, weight: 1e-6}, {path: more.jsonl, weight: 1}]"
    Path("aboard.yaml").write_text(text.replace("files: train.jsonl", files))
    with pytest.raises(AboardError, match="too small to sample accurately") as caught:
        prepared(load_train_settings(["aboard.yaml"]))
    assert caught.value.code == "data-mix-far"
    assert not Path("cache").exists()


# -- the nodes -------------------------------------------------------------------------------------------------------


def part() -> PreparedDataset:
    return PreparedDataset(
        name="data",
        shards=Path.home() / "cache/s",
        bins=Path("/elsewhere/b"),
        documents=1,
        tokens=1,
        supervised=1,
        sequences=1,
        length=128,
        full=1.0,
        cached=True,
    )


def plan_of(*names: str) -> Plan:
    names = names or ("n1", "n2")
    cluster = Cluster(nodes=tuple(Node(name=name) for name in names))
    wanted = build_request({"MINE": "1"})
    seats = {name: NodeResources(address=name) for name in names}
    return make_plan(cluster, wanted, seats, run="r", master=MasterAddress(node=names[0], address=names[0]))


def facts(**answers: Any) -> Facts:
    cluster = Cluster(nodes=(Node(name="n1"), Node(name="n2")))
    return Facts(cluster=cluster, contacts={}, answers=answers)


def settle(
    text: str, known: Facts, *names: str, estimate: EstimateMemory | None = None
) -> tuple[Plan, list[Finding], TrainingPreflight]:
    seen: list[TrainingPreflight] = []
    cargo = TrainingPayload(
        inputs=TrainingInputs(
            settings=words(text),
            model=Path("model"),
            tokenizer=Path("tok"),
            facts=ModelLimits(),
            data=(part(),),
            identity=IDENTITY,
            vocabulary=7,
        ),
        command=TYPED,
        upload=_nowhere,
        estimate_memory=estimate or _unknown,
        on_settled=lambda boarding, _findings: seen.append(boarding),
    )
    plan, findings = asyncio.run(cargo.settle(plan_of(*names), known))
    return (
        plan,
        list(findings),
        next(iter(seen), TrainingPreflight(training=cargo.inputs.training(bf16=False), ranks={})),
    )


def test_a_smaller_world_is_estimated_and_judged_anew() -> None:
    """What fits on two nodes does not on the one that is left, where each rank has twice as much."""

    async def estimate(_training: Training, ranks: Mapping[str, int], *_: object) -> RankMemoryNeeds:
        share = 96 * GIB // len(ranks)
        return RankMemoryNeeds(states=share, total=share)

    known = facts(**{MEMORY.name: dict.fromkeys(("n1", "n2"), 64 * GIB), GPU_SPECS.name: {"n1": (), "n2": ()}})
    text = "train: {model: ./model, global_batch_size: 4}\n"
    for names, refused in ((("n1", "n2"), []), (("n2",), ["train-memory"])):
        _plan, findings, _preflight = settle(text, known, *names, estimate=estimate)
        assert [each.code for each in findings if each.severity is Severity.BLOCK] == refused


async def _nowhere(*_: object, quiet: bool = False) -> None: ...


async def _unknown(*_: object) -> None: ...


def test_ranks_are_told_the_training_and_fetch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their environment, offline, with paths that are right for another home; the rank reads it back."""
    plan, findings, _ = settle("train: {model: ./model, seed: 7}", facts())
    assert findings == []
    assert plan.code == build_code_archive()
    for _node, start in plan.starts():
        assert start.code
        assert (start.env["HF_HUB_OFFLINE"], start.env["MINE"]) == ("1", "1")
        told = json.loads(start.env["ABOARD_TRAINING"])
        assert told["data"] == [{"name": "data", "shards": "~/cache/s", "bins": "/elsewhere/b", "weight": None}]
    monkeypatch.setenv("ABOARD_TRAINING", json.dumps(told))
    monkeypatch.setenv("HOME", "/home/other")
    training = read_job_spec()
    assert (training.data[0].shards, training.data[0].bins) == ("/home/other/cache/s", "/elsewhere/b")
    assert (training.seed, training.resume) == (7, "auto")
    assert Training.of(json.loads(json.dumps(asdict(training)))) == training


def test_ranks_get_every_module_that_theirs_import() -> None:
    """What the trainer imports of ours, at any depth and whenever it does, is in the archive."""
    with ZipFile(BytesIO(build_code_archive())) as archive:
        names = {
            name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in archive.namelist()
        }
        sources = {module: archive.read(name) for module, name in names.items()}
    # Of data, what ranks read: this machine prepares it.
    own = "aboard.trainer."
    rest = [module for module in sources if module.startswith(own) and not module.startswith(f"{own}data.")]
    reached = set(rest)
    while rest:
        nodes = [node for node in ast.walk(ast.parse(sources[rest.pop()])) if isinstance(node, ast.ImportFrom)]
        found = {str(node.module) for node in nodes if str(node.module).startswith("aboard")} - reached
        assert found <= sources.keys()
        reached |= found
        rest += found
    assert len(reached) > 100


def test_containers_see_all_directories_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, tokenizer, data and output, and the checkpoint that it resumes from; below home as the node has it."""
    training = Training(
        model="~/model",
        tokenizer="~/tok",
        data=(DataPart(name="a", shards="/d/s", bins="/d/b"),),
        validation=(DataPart(name="v", shards="/d/s", bins="/v/b"),),
        output_dir="~/out",
        max_length=8,
    )
    assert training.list_directories() == ["~/model", "~/tok", "/d/s", "/d/b", "/v/b", "~/out"]
    assert replace(training, resume="/old/step-1").list_directories()[-2:] == ["~/out", "/old/step-1"]
    monkeypatch.setenv("HOME", "/home/me")
    spec = ContainerSpec({"runtime": "podman", "image": "i", "directories": ["~/out", "/d/s"]})
    words, _ = wrap_command(spec, ["python3"], {}, [], run="r", directory="/tmp/r", cwd=None, exists=lambda _: False)
    assert "/home/me/out:/home/me/out" in words
    assert "/d/s:/d/s" in words


def test_a_rank_without_a_training_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who types `python -m aboard.trainer` is told what to type."""
    monkeypatch.delenv("ABOARD_TRAINING", raising=False)
    with pytest.raises(AboardError, match="no training settings: ABOARD_TRAINING is not set"):
        read_job_spec()


def test_what_the_nodes_are_like_settles_the_rest() -> None:
    """bfloat16 where all GPUs can; a control group's limit is the memory that there is."""
    new, old = GpuSpec(memory=80 * GIB, capability=9.0), GpuSpec(memory=16 * GIB, capability=7.5)
    none = GpuDriver(version="", cards=0, switches=0)
    both = {"n1": (new,), "n2": (new,)}
    assert settle("", facts(**{GPU_SPECS.name: both}))[2].training.bf16
    assert not settle("", facts(**{GPU_SPECS.name: {**both, "n2": (old,)}}))[2].training.bf16
    bare = settle("", facts(**{DRIVER.name: {"n1": none, "n2": none}}))[2]
    assert not bare.training.bf16
    assert bare.cards == {"n1": (), "n2": ()}
    asked_for = settle("train: {model: ./model, bf16: true}", facts(**{DRIVER.name: {"n1": none, "n2": none}}))[2]
    assert asked_for.training.bf16
    half = settle("train: {model: ./model, fp16: true}", facts(**{GPU_SPECS.name: both}))[2]
    assert (half.training.bf16, half.training.precision) == (False, "float16")
    limited = facts(
        **{
            MEMORY.name: {"n1": 64 * GIB, "n2": 64 * GIB},
            MEMORY_CGROUPS.name: {
                "n1": (
                    MemoryCgroup(path=Untrusted("/a"), limit=8 * GIB, kills=0),
                    MemoryCgroup(path=Untrusted("/"), limit=None, kills=0),
                )
            },
        }
    )
    assert settle("", limited)[2].memory == {"n1": 8 * GIB, "n2": 64 * GIB}
    assert not has_bf16({}, ["n1"])


def test_what_is_refused_is_found_with_the_plan() -> None:
    """Two nodes, one sequence a step."""
    (found,) = settle("train: {model: ./model, global_batch_size: 1}", facts())[1]
    assert found.code == "train-batch"
    assert SOFTWARE.name == "software"


def test_paths_below_the_home_are_told_by_it() -> None:
    """The home itself, and what is elsewhere, are told as they are."""
    assert abbreviate_home(Path.home() / "a/b") == "~/a/b"
    assert abbreviate_home(Path("/data/m")) == "/data/m"
    assert abbreviate_home(Path.home()) == str(Path.home())


# -- the checkpoint that it would resume from -------------------------------------------------------------------------


def saved(folder: Path, serial: int, step: int, **changed: Any) -> None:
    """A manifest as ranks write it, of a training with 4 sequences a step."""
    settings = {"max_length": 128, "seed": 42, "per_device_train_batch_size": 1}
    about = {
        "serial": serial,
        "step": step,
        "progress": {"step": step, "index": 4 * step},
        "training": settings,
        "step_size": 4,
        "world": 2,
        "sharding": "none",
        "versions": {},
        "data": IDENTITY,
        "config": {"vocab_size": 7},
        "ties": {},
        **changed,
    }
    (folder / f"step-{step:06}").mkdir(parents=True)
    text = commit_marker.format_marker(about, {"model/w": commit_marker.TensorSpec(dtype="F32", shape=(2, 2))}, [])
    (folder / f"step-{step:06}" / commit_marker.NAME).write_text(text)


def asked_of(folder: Path, probe: Probe[CheckpointManifests]) -> CheckpointManifests:
    """What a node answers, by its own shell."""
    question = probe.question
    assert isinstance(question, ProbeCommand)
    env = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    ran = subprocess.run(question.argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    return probe.parse(CommandOutput(code=ran.returncode, stdout=ran.stdout, stderr=ran.stderr))


def test_the_newest_checkpoint_is_found_by_its_manifest(tmp_path: Path) -> None:
    """In the folder of the training, below another home too, or the one that is named; a torn one is none."""
    folder = tmp_path / "my out"
    saved(folder, 7, 20)
    saved(folder, 8, 10)
    Path(folder, "step-000030").mkdir()
    Path(folder, "step-000030", commit_marker.NAME).write_text('{"sha256":"cut off')
    for asked_for in (str(folder), "~/my out"):
        found = asked_of(tmp_path, build_checkpoints_probe(asked_for))
        assert sorted(found) == [f"{folder}/step-000010", f"{folder}/step-000020"]
    last = find_newest_checkpoint({"n1": {}, "n2": found})
    assert last is not None
    assert last[:2] == ("n2", Untrusted(f"{folder}/step-000010"))
    assert commit_marker.parse_marker_head(last[2]).step == 10
    assert list(asked_of(tmp_path, build_checkpoints_probe(f"{folder}/step-000020"))) == [f"{folder}/step-000020"]
    assert asked_of(tmp_path, build_checkpoints_probe("/nowhere")) == {}


def resumes(folder: Path, text: str) -> list[Finding]:
    """What is said of a training on 2 ranks that would resume from the checkpoints in `folder`."""
    found = asked_of(folder, build_checkpoints_probe(str(folder)))
    return settle(f"train: {{model: ./model, output_dir: {folder}, {text}}}", facts(checkpoints={"n1": found}))[1]


@pytest.mark.parametrize(
    ("text", "said", "keep"),
    [
        ("global_batch_size: 8", "sequences per step: 4 → 8", "max_steps=1 --set a=b --set train.global_batch_size=4"),
        (
            "gradient_accumulation_steps: 4",
            "sequences per step: 4 → 8",
            "max_steps=1 --set a=b --set train.global_batch_size=4",
        ),
        ("global_batch_size: 4, seed: 7", "seed: 42 → 7", f"{TYPED.partition('train.')[2]} --set train.seed=42"),
    ],
)
def test_another_batch_or_order_is_refused_before_ranks_start(tmp_path: Path, text: str, said: str, keep: str) -> None:
    """With what has changed, how to go on as before, and how to start a new run."""
    saved(tmp_path / "out", 1, 20)
    (found,) = resumes(tmp_path / "out", text)
    assert (found.code, found.severity, found.nodes) == ("checkpoint-differs", Severity.BLOCK, ("n1",))
    assert found.seen == f"{tmp_path}/out/step-000020 can't be continued with these settings: {said}"
    assert found.fix.splitlines() == [
        f"aboard train 'n[1-2]' --set train.{keep}    # continues with the checkpoint's settings",
        f"{TYPED} --set train.output_dir={tmp_path}/out-2    # starts a new run, and keeps this one unchanged",
    ]


LORA = {"r": 4, "alpha": 8.0, "target_modules": ["q_proj"]}


def weights(content: bytes) -> str:
    """The model of these tests with weights, and their identity."""
    Path("model").mkdir(exist_ok=True)
    Path("model/model.safetensors").write_bytes(content)
    return identify_weights(Path("model"))


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("", "trained: an adapter → all weights"),
        (", adapter: {r: 8, alpha: 8, target_modules: [q_proj]}", "adapter.r: 4 → 8"),
        (", adapter: {r: 4, alpha: 8, target_modules: [q_proj]}", "base model: bbbbbbbbbbbb → "),
    ],
    ids=["full", "r", "base"],
)
def test_another_adapter_or_base_is_refused_before_ranks_start(tmp_path: Path, adapter: str, said: str) -> None:
    """Full training, another rank, or other base weights."""
    own = weights(b"these" * 5000)
    settings = {"max_length": 128, "seed": 42, "adapter": LORA}
    saved(tmp_path / "out", 1, 20, training=settings, base="b" * 32 if "base" in said else own)
    (found,) = resumes(tmp_path / "out", f"global_batch_size: 4{adapter}")
    assert (found.code, found.severity) == ("checkpoint-differs", Severity.BLOCK)
    assert f"can't be continued with these settings: {said}" in found.seen
    if "base" in said:
        assert "These adapters were trained on other base weights." in found.why


def test_the_same_adapter_goes_on(tmp_path: Path) -> None:
    """Its list of modules is the same in the file and in the manifest, and so are the weights."""
    settings = {"max_length": 128, "seed": 42, "adapter": LORA}
    saved(tmp_path / "out", 1, 20, training=settings, base=weights(b"these" * 5000))
    text = "global_batch_size: 4, max_steps: 30, adapter: {r: 4, alpha: 8, target_modules: [q_proj]}"
    assert resumes(tmp_path / "out", text) == []


def test_another_length_is_said_once_and_other_data_has_no_way_back(tmp_path: Path) -> None:
    """Sequences of another length are other data, which is no second difference."""
    settings = {"max_length": 64, "seed": 42}
    saved(tmp_path / "out", 1, 20, training=settings, data="e" * 64)
    (longer,) = resumes(tmp_path / "out", "global_batch_size: 4")
    assert longer.seen.endswith("settings: max_length: 64 → 128")
    assert longer.fix.startswith(f"{TYPED} --set data.max_length=64    #")
    saved(tmp_path / "other", 1, 20, data="e" * 64)
    (other,) = resumes(tmp_path / "other", "global_batch_size: 4")
    assert other.seen.endswith("settings: data: eeeeeeeeeeee → dddddddddddd")
    assert other.fix.startswith(f"{TYPED} --set train.output_dir=")


def test_what_may_change_on_the_way_goes_on(tmp_path: Path) -> None:
    """The same sequences in smaller batches, other steps, or a start from nothing."""
    saved(tmp_path / "out", 1, 20)
    for text in ("global_batch_size: 4, per_device_train_batch_size: 2, max_steps: 30", "max_steps: 30, resume: none"):
        assert resumes(tmp_path / "out", text if "global" in text else f"global_batch_size: 8, {text}") == []


@pytest.mark.parametrize(("steps", "asked_for"), [(20, 20), (10, 10)])
def test_a_training_that_is_finished_says_so(tmp_path: Path, steps: int, asked_for: int) -> None:
    """With where the model is and how to train it further; no rank starts, and no memory is estimated."""
    folder = tmp_path / "out"
    saved(folder, 1, 20)
    with pytest.raises(TrainingFinished) as caught:
        resumes(folder, f"global_batch_size: 4, max_steps: {steps}")
    assert (caught.value.resume.folder, caught.value.steps) == (Untrusted(f"{folder}/step-000020"), asked_for)
    done, export, further = format_finished_lines(caught.value, Runs(tmp_path / "runs"))
    asked_words = "step 20 of 20" if steps == 20 else "step 20 (10 requested)"
    assert done == f"done: training is already complete; {asked_words} is saved in {folder}/step-000020"
    assert export.startswith(f"next aboard export {folder}/step-000020 --to trained    #")
    assert further.endswith(f" --set a=b --set train.max_steps={2 * steps}    # trains it further")
    assert "max_steps=1 " not in further


def test_a_training_that_stopped_early_says_so(tmp_path: Path) -> None:
    """With the evaluations that stopped it, the best checkpoint, and the patience that continues it."""
    folder = tmp_path / "out"
    state = BestEvaluation(step=10, loss=1.25, kept=True, stale=3).content()
    settings = {"max_length": 128, "seed": 42, "load_best_model_at_end": True}
    saved(folder, 1, 20, training=settings, state=state)
    patient = "global_batch_size: 4, max_steps: 90, eval_steps: 5, early_stopping_patience"
    Path("held.jsonl").write_text("{}\n")
    with pytest.raises(TrainingFinished) as caught:
        resumes(folder, f"{patient}: 3, load_best_model_at_end: true")
    done, export, further = format_finished_lines(caught.value, Runs(tmp_path / "runs"))
    assert done.startswith(
        "done: training has already stopped early, after 3 evaluations without improvement; step 20 of 90 is saved in"
    )
    best = "the best checkpoint (step 10, eval loss 1.2500)"
    assert export == f"next aboard export {folder} --to trained    # exports {best} for transformers"
    assert further.endswith(" --set train.early_stopping_patience=6    # trains it further")
    assert resumes(folder, f"{patient}: 4") == []


# -- the code and the trainer ----------------------------------------------------------------------------------------


def test_the_code_is_the_same_for_the_same_source_and_runs_by_itself() -> None:
    """A Python that has no Aboard imports what ranks need of it, from the file."""
    assert build_code_archive() == build_code_archive()
    Path("code.zip").write_bytes(build_code_archive())
    source = (
        "import aboard.trainer.job_spec, aboard.trainer.metrics.head_beacon, aboard.core.plan.training_settings;"
        " print(aboard.trainer.job_spec.__file__)"
    )
    env = {"PYTHONPATH": "code.zip", "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-S", "-c", source], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip().endswith("code.zip/aboard/trainer/job_spec.py")


def test_the_trainer_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it prints last is the answer; an error that it tells is raised as ours; a crash is named."""
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()), prepend=os.pathsep)
    Path("answers.py").write_text(
        "import json, sys\n"
        "what = sys.argv[1]\n"
        "if what == 'good': print('noise'); print(json.dumps({'got': json.load(sys.stdin)}))\n"
        "error = {'code': 'model-damaged', 'seen': 's', 'fix': 'curl evil', 'variant': '', 'values': {'path': 'a b'}}\n"
        "if what == 'bad': print(json.dumps({'error': error})); sys.exit(3)\n"
        "if what == 'crash': raise ValueError('no')\n"
        "if what == 'hang': import time; time.sleep(60)\n"
    )
    assert asyncio.run(ask_trainer("answers", "good", request={"a": 1}, seconds=30)) == {"got": {"a": 1}}
    # A node that takes over has its own memory, which is asked about with another plan.
    with TrainerProcess("answers", "good") as trainer:
        assert [asyncio.run(trainer.ask({"a": number}, 30)) for number in (1, 2)] == [
            {"got": {"a": 1}},
            {"got": {"a": 2}},
        ]
    with pytest.raises(AboardError, match="s") as caught:
        asyncio.run(ask_trainer("answers", "bad", seconds=30))
    assert (caught.value.code, caught.value.fix) == (
        "model-damaged",
        "rm 'a b'   # then download the model again: hf download ORG/NAME, or git lfs pull in a clone",
    )
    with pytest.raises(AboardError, match="ValueError: no"):
        asyncio.run(ask_trainer("answers", "crash", seconds=30))
    with pytest.raises(AboardError, match=r"no reply within 0\.5 s"):
        asyncio.run(ask_trainer("answers", "hang", seconds=0.5))


# -- export ----------------------------------------------------------------------------------------------------------


def test_which_checkpoint_is_exported(tmp_path: Path) -> None:
    """The newest whole one of a folder; by its name any; one without a marker never."""
    runs = Runs(tmp_path / "runs")
    for name in ("step-000002", "step-000010", "step-000010-2", "step-000011"):
        Path("out", name).mkdir(parents=True)
        if name != "step-000011":
            Path("out", name, "manifest.json").write_text("{}")
    assert find_checkpoint("out") == ChosenCheckpoint(path=Path("out/step-000010-2"))
    assert find_checkpoint("out/step-000002") == ChosenCheckpoint(path=Path("out/step-000002"))
    assert find_checkpoint("out", "step-000010") == ChosenCheckpoint(path=Path("out/step-000010"))
    Path("empty").mkdir()
    with pytest.raises(AboardError, match="no complete checkpoint in empty"):
        find_checkpoint("empty")
    assert find_checkpoint("nobody") is None
    request = ExportRequest(what="nobody", to=tmp_path / "to", cache=tmp_path / "cache")
    with pytest.raises(AboardError, match="there is no run, and no directory 'nobody'"):
        asyncio.run(export_checkpoint(request, runs))


REPORT: ExportReport = {"files": 1, "bytes": 2048, "dtype": "bfloat16", "base": None, "notes": []}


def test_an_export_says_how_to_load_it() -> None:
    """A model by itself, an adapter with its base."""
    done = ExportResult(checkpoint=Path("out/step-000002"), to=Path("it's"), report=REPORT)
    assert format_export(done) == [
        "exported out/step-000002 to it's, 2 KiB",
        """    AutoModelForCausalLM.from_pretrained("it's")""",
    ]
    lora = replace(done, report={**REPORT, "base": "ORG/NAME", "notes": ["a note"]})
    assert format_export(lora) == [
        "a note",
        "exported out/step-000002 to it's, 2 KiB",
        """    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained('ORG/NAME'), "it's")""",
        "this is the adapter alone; `aboard export … --merge` writes a model that needs no PEFT",
    ]


def test_an_export_of_a_run_that_trains_on_says_so() -> None:
    """Its newest checkpoint is exported, and there will be newer ones."""
    done = ExportResult(checkpoint=Path("out/step-000002"), to=Path("to"), report=REPORT, active=True)
    first, second, _load = format_export(done)
    assert first == "the run is still training: this is its newest checkpoint so far; export again when it is over"
    assert second == "exported out/step-000002 to to, 2 KiB"


def test_a_run_that_trains_and_has_no_checkpoint_yet_is_not_exported(tmp_path: Path) -> None:
    """The error says that it is still running, and how to see its first checkpoint come."""
    runs = Runs(tmp_path / "runs")
    run = runs.create(datetime(2026, 11, 15, tzinfo=UTC), Random(1))  # noqa: S311 - draws a name
    settings = json.dumps({"output_dir": str(tmp_path / "output")})
    run.plan.write_text(json.dumps({"env": {"ABOARD_TRAINING": settings}, "nodes": []}))
    claim = run.claim()
    request = ExportRequest(what=run.id, to=tmp_path / "to", cache=tmp_path / "cache")
    with pytest.raises(AboardError, match="is still running, and has saved no complete checkpoint") as caught:
        asyncio.run(export_checkpoint(request, runs))
    claim.release()
    assert caught.value.fix.startswith(f"aboard status {run.id} --live")


def test_nothing_to_merge_is_said_before_parts_are_fetched(tmp_path: Path) -> None:
    """A run without an adapter has the whole model."""
    runs = Runs(tmp_path / "runs")
    run = runs.create(datetime(2026, 11, 17, tzinfo=UTC), Random(0))  # noqa: S311 - a name, no secret
    training = json.dumps({"output_dir": "/nowhere", "adapter": None})
    run.plan.write_text(json.dumps({"env": {"ABOARD_TRAINING": training}}))
    request = ExportRequest(what=run.id, to=tmp_path / "to", cache=tmp_path / "cache", merge=True)
    with pytest.raises(AboardError, match="trained no adapter that could be merged") as caught:
        asyncio.run(export_checkpoint(request, runs))
    assert caught.value.fix.startswith(f"aboard export {run.id} --to {tmp_path}/to ")


def test_what_is_known_before_any_look_is_refused_before_any_work() -> None:
    """Where the file says how many slots the nodes have; else it waits for the look."""
    found = words("train: {model: ./model, global_batch_size: 2}")
    slots = Cluster(nodes=(Node(name="n1", slots=2), Node(name="n2", slots=2), Node(name="idle", slots=0)))
    assert [finding.code for finding in find_early_findings(found, slots, None)] == ["train-batch"]
    assert find_early_findings(found, slots, 1) == []
    assert find_early_findings(found, Cluster(nodes=(Node(name="n1"),)), None) == []


def test_the_command_that_goes_on_resumes_whatever_the_file_says() -> None:
    """With `resume: none` the same command would start over."""
    assert build_resume_command(format_shell("aboard train"), words()) == "aboard train"
    again = build_resume_command(format_shell("aboard train"), words("train: {model: ./model, resume: none}"))
    assert again == "aboard train --set train.resume=auto"


def test_prepared_data_is_in_the_users_cache() -> None:
    """XDG's, where that is a whole path."""
    assert get_cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/aboard/data")
    assert get_cache_folder({"XDG_CACHE_HOME": "c"}) == get_cache_folder({}) == Path.home() / ".cache/aboard/data"
