"""Attacks by the author of a model, a checkpoint, an adapter, a data set or a bundle."""

import gzip
import io
import json
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model

from aboard.commands.train.fetch_model import fetch_model, read_model_facts
from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import AboardError
from aboard.engine.records.bundle_replay import replay_bundle
from aboard.trainer.adapter.inject_adapter import inject_adapter
from aboard.trainer.checkpoint.commit_marker import TensorSpec, format_marker
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.tokens import render_limits
from aboard.trainer.data.tokens.tokenizer_parts import load_vocabulary
from aboard.trainer.model.meta_model import build_on_meta
from aboard.trainer.settings.adapter_files import read_adapter_config
from aboard.trainer.weights.weight_files import open_weights

PART: dict[str, Any] = {
    "name": "r0",
    "rank": 0,
    "node": "n1",
    "disk": 0,
    "bytes": 8,
    "sha256": "0" * 64,
    "slices": {"model/w": [[0], [2]]},
}
MANIFEST = b'{"format": 1, "aboard": "0", "run": "r"}'


def _pack(path: Path, members: dict[str, bytes], pax: dict[str, str] | None = None) -> Path:
    """A bundle of these members, as anybody could make it; `pax` are headers of the last one."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (name, content) in enumerate(members.items(), 1):
            entry = tarfile.TarInfo(f"aboard-bundle/{name}")
            entry.size = len(content)
            entry.pax_headers = pax if pax and number == len(members) else {}
            tar.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(data.getvalue(), 1))
    return path


@pytest.mark.parametrize(
    "pax",
    [
        {"GNU.sparse.map": "a,b"},
        {"GNU.sparse.size": "x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "nan"},
    ],
)
def test_a_bundle_with_crafted_headers_is_refused_by_name(tmp_path: Path, pax: dict[str, str]) -> None:
    """A header that Python's own tar reader fails on is reported as a broken bundle."""
    path = _pack(tmp_path / "b.tar.gz", {"manifest.json": MANIFEST, "plan.json": b"{}"}, pax)
    with pytest.raises(AboardError) as refused:
        replay_bundle(path)
    assert refused.value.code == "bundle-broken"


MODEL_CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def coded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that brings code, which leaves a mark when it runs; whoever is asked says yes."""
    monkeypatch.setattr("builtins.input", lambda _text: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    folder.mkdir()
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": names, "vocab_size": 16, **shape}))
    (folder / "modeling_own.py").write_text(MODEL_CODE.format(mark=str(tmp_path / "ran")))
    tokenizer = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "modeling_own.OwnConfig"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


def _make_training(model: Path, **changed: Any) -> Training:
    return Training(model=str(model), data=(), output_dir="o", max_length=8, from_scratch=True, bf16=False, **changed)


def test_code_that_comes_with_a_model_is_not_run(coded_model: Path, tmp_path: Path) -> None:
    """A rank refuses a model with code of its own, and names the file and the setting that allows it."""
    with pytest.raises(AboardError) as refused:
        build_on_meta(_make_training(coded_model), torch.device("cpu"))
    assert refused.value.code == "model-code"
    assert "modeling_own.py" in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_tokenizer_is_not_run(coded_model: Path, tmp_path: Path) -> None:
    """Preparing data refuses a tokenizer with code of its own, and names the file."""
    with pytest.raises(AboardError) as refused:
        load_vocabulary(str(coded_model))
    assert refused.value.code == "model-code"
    assert "modeling_own.py" in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_runs_only_by_setting(coded_model: Path, tmp_path: Path) -> None:
    """With `trust_remote_code` the code builds the model, without a question."""
    model = build_on_meta(_make_training(coded_model, trust_remote_code=True), torch.device("cpu"))
    assert type(model).__name__ == "OwnModel"
    assert (tmp_path / "ran").exists()


def test_a_model_that_needs_its_own_code_is_refused_before_anything_slow(coded_model: Path, tmp_path: Path) -> None:
    """The head names the code before it reads data or claims nodes."""
    with pytest.raises(AboardError) as refused:
        fetch_model(str(coded_model), from_scratch=True)
    assert refused.value.code == "model-code"
    assert fetch_model(str(coded_model), from_scratch=True, trust_remote_code=True) == coded_model
    assert not (tmp_path / "ran").exists()


def test_an_attention_kernel_named_by_a_model_is_not_fetched(tmp_path: Path) -> None:
    """config.json may name a kernel on the Hub, which is code: it is refused like other code."""
    tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "somebody/kernel"}))
    with pytest.raises(AboardError) as refused:
        build_on_meta(_make_training(tmp_path), torch.device("cpu"))
    assert refused.value.code == "model-code"


# In a process of its own, with hard limits: the test must end even if an attack succeeds.
RENDER_SCRIPT = """
import json, resource, signal, sys
import tokenizers
from transformers import PreTrainedTokenizerFast
from aboard.trainer.data.rows import DataRow, RowLocation
from aboard.trainer.data.tokens import render_limits
from aboard.trainer.data.tokens.encoder import Encoder
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted

signal.alarm(60)
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
render_limits.RENDER_SECONDS = 0.5
words = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
where = RowLocation(file=Untrusted("row.jsonl"), line=7)
row = DataRow(location=where, kind="chat", messages=({"role": "user", "content": "row"},))
for name, template in json.loads(sys.argv[1]).items():
    try:
        said = Encoder(fast, template=template)([row])
    except AboardError as error:
        said = error.code, str(error)
    print(json.dumps([name, *map(str, said)]), flush=True)
"""
ENDLESS = {
    "s: loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "s: recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "s: power": "{{ (messages | length + 6) ** (10 ** 9) % 3 }}",
    "GB: repeated text": "{{ 'a' * 10 ** 10 }}",
    "GB: doubled text": (
        "{% set ns = namespace(x='aaaa') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
    ),
    "GB: a list": "{{ ([0] * 10 ** 9) | length }}",
}


def test_a_template_that_never_ends_is_named_with_its_row() -> None:
    """A template that takes too long or too much memory for a row ends the preparation; row and limit are named."""
    templates = {
        name: f"{{% if messages[0]['content'] == 'row' %}}{text}{{% endif %}}" for name, text in ENDLESS.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", RENDER_SCRIPT, json.dumps(templates)], capture_output=True, text=True, check=False
    )
    said = {name: text for name, *text in map(json.loads, done.stdout.splitlines())}
    assert {name: text[0] for name, text in said.items()} == dict.fromkeys(ENDLESS, "data-template-limit"), done.stderr
    for name, (_code, text) in said.items():
        assert "row.jsonl:7" in text
        assert f" {name.partition(':')[0]} " in text


@pytest.mark.parametrize(
    "name", ["checkpoints/last", "models/llama", "own/step-000100", "here/model", "./model", "a/b/c"]
)
def test_a_missing_path_is_not_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Somebody may own a repository with the name of a missing directory: only `hub:NAME` fetches it."""
    fetched: list[str] = []

    def fetch(name: str, *_: object, **__: object) -> str:
        fetched.append(name)
        raise OSError("not found")

    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr("datasets.load_dataset", fetch)
    monkeypatch.setattr("aboard.trainer.data.intake.source_chunks.is_hub_reachable", lambda: True)
    readers: list[tuple[Callable[[str], object], str]] = [
        (lambda name: fetch_model(name, from_scratch=True), "train-model"),
        (lambda name: list_source_chunks(SourceSpec(path=name)), "data-missing"),
        (load_vocabulary, "data-tokenizer"),
    ]
    for read, code in readers:
        with pytest.raises(AboardError) as refused:
            read(name)
        assert refused.value.code == code
        assert (f"hub:{name}" in refused.value.fix) == (name.count("/") == 1 and not name.startswith((".", "here")))
    assert fetched == []
    for read, _code in readers[:2]:
        with pytest.raises(AboardError):
            read("hub:checkpoints/last")
    assert fetched == ["checkpoints/last", "checkpoints/last"]


class _Payload:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self._mark,)


def test_a_pickle_in_place_of_weights_is_not_run(tmp_path: Path) -> None:
    """pytorch_model.bin is loaded as tensors alone; anything else in it is refused by name."""
    mark = tmp_path / "ran"
    torch.save({"a": torch.zeros(2), "b": _Payload(mark)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(AboardError) as refused:
        open_weights(tmp_path)
    assert refused.value.code == "model-damaged"
    assert not mark.exists()


def test_pickles_beside_a_model_or_adapter_are_not_read(tmp_path: Path) -> None:
    """optimizer.pt, training_args.bin and adapter_model.bin of somebody else's checkpoint stay unread."""
    mark = tmp_path / "ran"
    tiny_model(tmp_path)
    for name in ("optimizer.pt", "training_args.bin", "rng_state.pth", ".metadata", "adapter_model.bin"):
        (tmp_path / name).write_bytes(pickle.dumps(_Payload(mark)))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 8}))
    assert fetch_model(str(tmp_path), from_scratch=False) == tmp_path
    assert open_weights(tmp_path)
    with pytest.raises(AboardError) as refused:
        read_adapter_config(tmp_path)
    assert "adapter_model.safetensors" in refused.value.seen
    assert not mark.exists()


LYING_HEADERS = {
    "a huge header": (1 << 62).to_bytes(8, "little") + b"{}",
    "a header beyond the file": (90 << 20).to_bytes(8, "little") + b"{}",
    "a huge shape": {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 16]}},
    "a negative shape": {"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}},
    "another type": {"a": {"dtype": "F64", "shape": [2, 2], "data_offsets": [0, 16]}},
    "overlapping tensors": {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    },
    "negative offsets": {"a": {"dtype": "U8", "shape": [1], "data_offsets": [-1, 0]}},
    "no offsets": {"a": {"dtype": "U8", "shape": [1]}},
    "a list": [],
    "deep nesting": b"[" * 60_000,
}


@pytest.mark.parametrize("name", LYING_HEADERS)
def test_a_safetensors_header_that_lies_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Neither a size nor an offset of a header is believed before it was compared with the file."""
    given = LYING_HEADERS[name]
    header = given if isinstance(given, bytes) else json.dumps(given).encode()
    has_length = isinstance(given, bytes) and "header" in name
    whole = header if has_length else len(header).to_bytes(8, "little") + header
    (tmp_path / "model.safetensors").write_bytes(whole + bytes(16))
    with pytest.raises(AboardError) as refused:
        open_weights(tmp_path)
    assert refused.value.code == "model-damaged"


@pytest.mark.parametrize("place", ["../secret.safetensors", "/etc/passwd", "a/../../x", 3])
def test_an_index_of_weights_stays_in_its_directory(tmp_path: Path, place: object) -> None:
    """An index can't name a file outside of the model's directory."""
    index = {"weight_map": {"a": place}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(AboardError) as refused:
        open_weights(tmp_path)
    assert refused.value.code == "model-damaged"


@pytest.mark.parametrize("content", ["[]", "null", "[" * 60_000, '{"text_config": 3}', '{"vocab_size": "x"}', "\x00"])
def test_settings_of_a_model_that_make_no_sense_are_named_or_ignored(tmp_path: Path, content: str) -> None:
    """config.json is somebody else's text: the head names what it can't read."""
    (tmp_path / "config.json").write_text(content)
    with suppress(AboardError):
        assert read_model_facts(tmp_path).vocabulary is None


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_local_experts"])
def test_a_model_of_a_billion_layers_is_refused_by_name(tmp_path: Path, key: str) -> None:
    """Building it would take hours and all memory, even without weights."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 10**12}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral", **shape, key: 10**9}))
    with pytest.raises(AboardError) as refused:
        build_on_meta(_make_training(tmp_path), torch.device("cpu"))
    assert refused.value.code == "model-not-built"
    assert "1000000000" in refused.value.seen


def test_an_adapter_with_an_endless_pattern_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular expression of an adapter that never ends is named instead of hanging every rank."""
    monkeypatch.setattr(render_limits, "RENDER_SECONDS", 0.3)
    model = build_on_meta(_make_training(Path(tiny_model(tmp_path))), torch.device("cpu"))
    adapter = Adapter(target_modules=r"(([\w.]+)+)+!")
    with pytest.raises(AboardError) as refused:
        inject_adapter(model, _make_training(tmp_path, adapter=adapter), adapter)
    assert refused.value.code == "adapter-targets"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tensors": {"model/w": ["F4096", [2]]}}, "unknown type F4096"),
        ({"ties": {"a": "nowhere"}}, "a tied tensor is missing"),
        ({"files": [{**PART, "slices": {"model/w": [[0, 0], [1, 1]]}}]}, "a slice that fits no tensor"),
        ({"files": [{**PART, "name": "../../x"}]}, "not a plain file name"),
        ({"files": [{**PART, "bytes": 1 << 80}]}, "bytes: expected a number"),
    ],
)
def test_a_checkpoint_whose_manifest_lies_is_refused_by_name(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    """What it names must exist in it, and beside it."""
    about: dict[str, Any] = {name: {} for name in ("progress", "training", "versions", "ties")}
    about |= {"serial": 1, "step": 1, "step_size": 1, "world": 1, "sharding": "none", "data": "", "config": None}
    content = {**about, "tensors": {"model/w": ["F32", [2]]}, "files": [PART], **change}
    tensors = {name: TensorSpec(dtype=dtype, shape=shape) for name, (dtype, shape) in content.pop("tensors").items()}
    lines = [json.dumps(part) for part in content.pop("files")]
    (tmp_path / "manifest.json").write_text(format_marker(content, tensors, lines))
    with pytest.raises(AboardError, match=why) as refused:
        SavedCheckpoint.open(tmp_path)
    assert refused.value.code == "checkpoint-unusable"
