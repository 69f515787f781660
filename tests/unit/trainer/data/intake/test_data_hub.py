"""A data set by its name on the hub: from the cache of `datasets`, or an error that says what to do."""

import json
import socket
from pathlib import Path

import pyarrow as pa
import pytest
from deadlines import within
from huggingface_hub import constants

from aboard.commands.data.prepare_data import DataCheckRequest, open_source
from aboard.diagnoses import AboardError
from aboard.trainer.data.intake.read_chunk import detect_format, read_rows
from aboard.trainer.data.intake.source_chunks import SourceSpec, is_hub_name, list_hub_chunks, list_source_chunks
from aboard.trainer.data.rows import DataRow

COMMIT = "0123456789abcdef" + 24 * "0"


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("tatsu-lab/alpaca", True),
        ("imdb", True),
        ("owner/name.v2", True),
        ("data/train.jsonl", False),
        ("data/train.jsonl.gz", False),
        ("./imdb", False),
        ("/data/imdb", False),
        ("a/b/c", False),
    ],
)
def test_names(text: str, is_name: bool) -> None:  # noqa: FBT001 - a table's column
    """A path that is not there is a hub name if it looks like one, and a missing file if it looks like a file."""
    assert is_hub_name(text) == is_name


@pytest.mark.ci
def test_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a network and without a copy, the error says so and gives the command that fetches one."""
    import datasets  # noqa: PLC0415 - takes seconds, which the other tests needn't wait for

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(AboardError) as error:
        list_source_chunks(SourceSpec(path="nobody/nothing"))
    assert error.value.code == "data-hub"
    assert "nobody/nothing" in error.value.fix


@pytest.mark.ci
def test_a_hub_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a way out knows it in seconds, not after a minute of tries."""
    import datasets  # noqa: PLC0415 - as above

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with within(5), pytest.raises(AboardError) as error:
        list_source_chunks(SourceSpec(path="nobody/nothing"))
    assert error.value.fix.startswith("hf download --repo-type dataset nobody/nothing")


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of two splits in the cache of `datasets`, made from a commit, and no way to the hub."""
    import datasets  # noqa: PLC0415 - as above

    folder = tmp_path / "owner___name" / "default" / "0.0.0" / COMMIT
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        for shard in range(3):
            table = pa.table({"text": [f"{split}-{shard}-{row}" for row in range(3)]})
            with pa.ipc.new_stream(str(folder / f"name-{split}-{shard:05d}-of-00003.arrow"), table.schema) as out:
                out.write_table(table)
    splits = {
        split: {"name": split, "num_examples": 9, "shard_lengths": [3, 3, 3], "dataset_name": "name"}
        for split in ("train", "test")
    }
    info = {
        "builder_name": "parquet",
        "dataset_name": "name",
        "config_name": "default",
        "version": {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0},
        "features": {"text": {"dtype": "string", "_type": "Value"}},
        "splits": splits,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.mark.ci
def test_cached(cached: Path) -> None:
    """What `datasets` keeps in its cache is read over its arrow files, with rows numbered through all of them."""
    assert cached.is_dir()
    chunks = list_hub_chunks("owner/name", config=None, split="train", every=1)
    rows = [row for chunk in chunks for row in read_rows(chunk, detect_format(chunks))]
    assert [(str(row.location), row.text) for row in rows if isinstance(row, DataRow)] == [
        (f"hub:owner/name/train row {at + 1}", f"train-{at // 3}-{at % 3}") for at in range(9)
    ]


@pytest.mark.ci
def test_a_split_and_a_revision_are_what_is_read(cached: Path) -> None:
    """A branch as the hub's cache knows it; another revision or split is never taken instead, but named."""
    request = DataCheckRequest(files=(), command="")
    branch = cached / "hub" / "datasets--owner--name" / "refs" / "main"
    branch.parent.mkdir(parents=True)
    branch.write_text(COMMIT)
    for revision in ("main", COMMIT[:10]):
        opened = open_source(f"owner/name?split=test&revision={revision}", request)
        first = next(iter(read_rows(opened.chunks[0], opened.format)))
        assert isinstance(first, DataRow)
        assert (str(first.location), first.text) == (f"hub:owner/name@{revision}/test row 1", "test-0-0")
    branch.write_text("f" * 40)
    for revision in ("main", "v2"):
        with pytest.raises(AboardError, match=f"the cache has revision {COMMIT} of 'owner/name', not {revision}"):
            open_source(f"owner/name?revision={revision}", request)
    with pytest.raises(AboardError, match="has no split 'dev', only train, test") as lacking:
        open_source("owner/name?split=dev", request)
    assert lacking.value.fix == "write split: train"


def test_a_file_has_no_split(tmp_path: Path) -> None:
    """What can't be obeyed is refused; a directory has splits by the names of its files, but no revision."""
    (tmp_path / "test.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "train.jsonl").write_text('{"text": "b"}\n')
    request = DataCheckRequest(files=(), command="")
    (chunk,) = open_source(f"{tmp_path}?split=test", request).chunks
    assert chunk.path.endswith("test.jsonl")
    wrong = {"/test.jsonl?split=test": "a file, and has no split", "?revision=main": "a directory, and has no revision"}
    for end, said in wrong.items():
        with pytest.raises(AboardError, match=said):
            open_source(f"{tmp_path}{end}", request)
