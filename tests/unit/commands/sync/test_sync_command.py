"""What `aboard sync` chooses to send, what it prints, and replies of nodes that it refuses."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from aboard.commands.launch.run_options import parse_sync_limit
from aboard.commands.sync.command import sync
from aboard.commands.sync.sync_view import NodeProgressView, NodeRates, format_sync_json, format_sync_lines
from aboard.commands.sync.trees.sync_sources import TrainingFiles, load_training_files, scan_sources
from aboard.config.this_machine import locate_on_nodes
from aboard.core.cluster.file_sync import NodeTreeResult, UploadProgress
from aboard.core.cluster.file_transfer_errors import build_no_room_error
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import Untrusted
from aboard.transport.files.tree_sender import TreeEntry, _Listing

CONFIG = """
data:
  files: [data/train.jsonl]
train:
  model: model
  output_dir: runs
"""


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_code_data_and_model_are_sent_and_results_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data and model go on their own; the output of runs and environments stay, and are protected from --delete."""
    put(
        tmp_path,
        "train.py",
        "data/train.jsonl",
        "data/notes",
        "model/config.json",
        "model/w",
        "runs/step-1",
        "env/bin/python",
    )
    put(tmp_path, "env/pyvenv.cfg")
    (tmp_path / "aboard.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    code, data, model = scan_sources((), (), load_training_files(["aboard.yaml"], ()))
    assert set(code.files) == {"aboard.yaml", "train.py", "data/notes"}
    assert not code.is_data
    assert code.ignore.excludes("runs", is_directory=True)
    assert (set(data.files), data.is_whole, data.is_data) == ({"train.jsonl"}, False, True)
    assert (set(model.files), model.is_data) == ({"config.json", "w"}, True)


def test_data_behind_a_link_goes_to_its_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is sent as a link, so that a script finds the data on a node as it does here."""
    put(tmp_path, "disk/corpus/train.jsonl", "here/train.py")
    (tmp_path / "here/data").symlink_to(tmp_path / "disk/corpus")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    for files in ("data", "data/train.jsonl"):
        Path("aboard.yaml").write_text(f"data: {{files: [{files}]}}\n")
        code, data = scan_sources((), (), load_training_files(["aboard.yaml"], ()))
        assert code.links == {"data": str(tmp_path / "disk/corpus")}
        assert (data.to, set(data.files)) == ("~/disk/corpus", {"train.jsonl"})


def test_a_link_in_the_root_directory_stays() -> None:
    """/scratch may lead to another disk on each machine; links further down are resolved."""
    for top in (path for path in Path("/").iterdir() if path.is_symlink() and path.is_dir()):
        assert locate_on_nodes(top / "corpus") == str(top / "corpus")
    assert locate_on_nodes(Path("/etc/../usr/corpus")) == "/usr/corpus"


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """With the near name, before any node is dialled."""
    put(tmp_path, "configs/a")
    with pytest.raises(InputError) as error:
        scan_sources([tmp_path / "config"], (), TrainingFiles())
    assert str(tmp_path / "configs") in error.value.problems[0].fix


def test_nodes_that_were_not_reached_are_checked_by_the_names_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without aboard.yaml, `aboard check` alone would check this machine, and find nothing."""
    put(tmp_path, "file")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "")  # no ssh
    done = CliRunner().invoke(sync, ["--on", "n1", "--on", "n[2-3]", "file"])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].strip() == "fix  aboard check n1 'n[2-3]'"


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("1.5 GiB", 3 * 2**29), ("10kb", 10_000)])
def test_the_limit_has_a_unit(text: str, size: int) -> None:
    """As sizes in aboard.yaml."""
    assert parse_sync_limit(text) == size


def test_a_limit_without_a_unit_is_refused() -> None:
    """A bare number could be bytes or gigabytes."""
    with pytest.raises(InputError):
        parse_sync_limit("5")


def test_the_result_names_nodes_that_failed() -> None:
    """One line per node, and the same as JSON."""
    error = build_no_room_error("n2", Untrusted("/data"), free=1024, needed=4096)
    results = {
        "n1": NodeTreeResult(sent=2048, had=1024, files=2, deleted=1, changed=True, seconds=1.5),
        "n2": NodeTreeResult(error=error),
        "n3": NodeTreeResult(had=3072),
    }
    assert format_sync_lines(results, dry=False) == [
        "synced n1: sent 2 KiB in 2 files, had 1 KiB, deleted 1, 1.5 s",
        "failed n2: n2: 4 KiB is needed in /data, but only 1 KiB is free [spread-disk-full]",
        "synced n3: up to date",
    ]
    nodes = json.loads(format_sync_json(results, (), special=0))["nodes"]
    assert [node["up_to_date"] for node in nodes.values()] == [False, False, True]
    assert nodes["n2"]["error"]["code"] == "spread-disk-full"


def test_progress_has_the_rate_and_the_time_left() -> None:
    """From the first byte on; without a terminal a line every few seconds."""
    now = 100.0
    rates = NodeRates(lambda: now)
    pipe = StringIO()
    plain = NodeProgressView(Console(file=pipe, width=80), lambda: now)
    first = UploadProgress(node="n1", phase="sending", done=0, total=10 << 20)
    assert rates.describe(first) == "0 B of 10 MiB"
    plain.update(first)
    now = 106.0
    later = UploadProgress(node="n1", phase="sending", done=6 << 20, total=10 << 20)
    assert rates.describe(later) == "6 MiB of 10 MiB, 1 MiB/s, 4 s left"
    plain.update(later)
    plain.update(later)
    assert pipe.getvalue() == "n1  sending: 6 MiB of 10 MiB, 1 MiB/s, 4 s left\n"


GOOD = [0, "a", 0o100644, 1, 2]


@pytest.mark.parametrize(
    "reply",
    [
        {"found": "no", "more": False},
        {"found": [], "more": True},
        {"found": [["0", "a", 1, 1, 1]], "more": False},
        {"found": [[1, "a", 1, 1, 1]], "more": False},
        {"found": [[-1, "a", 1, 1, 1]], "more": False},
        {"found": [[0, "../a", 1, 1, 1]], "more": False},
        {"found": [[0, "..", 1, 1, 1]], "more": False},
        {"found": [[0, "a", 1, -1, 1]], "more": False},
        {"found": [[0, "a", True, 1, 1]], "more": False},
        {"found": [[*GOOD, 7]], "more": False},
        {"found": [[*GOOD, "x", "y"]], "more": False},
        {"found": [[0]], "more": False},
    ],
)
def test_listings_that_make_no_sense_are_refused(reply: dict[str, Any]) -> None:
    """A node's listing decides what is deleted there: no name in it leads out."""
    with pytest.raises((ValueError, TypeError)):
        _Listing(lambda _path: True, 0).add(["d"], reply)


def test_a_listing_is_read() -> None:
    """By path; a link with its target."""
    listing = _Listing(lambda _path: True, 0)
    assert not listing.add(["d"], {"found": [GOOD, [0, "l", 0o120777, 1, 2, "a"]], "more": False})
    assert listing.found == {"d/a": TreeEntry(0o100644, 1, 2), "d/l": TreeEntry(0o120777, 1, 2, "a")}
