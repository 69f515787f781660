"""Syncing trees to agents on this machine, each with its own home: what rsync users expect, and nothing outside."""

import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_homes import run_sync

from aboard.agent.transfer.file_names import BadName
from aboard.agent.transfer.receive_tree import ReceiveTree
from aboard.commands.sync.trees.source_tree import scan_code, scan_data, scan_file
from aboard.commands.sync.trees.tree_difference import SMALL_BYTES
from aboard.core.cluster.file_sync import NodeTreeResult


def sync_code(homes: Path, *names: str, delete: bool = False, dry: bool = False) -> Mapping[str, NodeTreeResult]:
    tree = replace(scan_code(homes / "here", "~/tree"), is_named=True)
    results = run_sync(homes, [tree], *names, delete=delete, dry=dry)
    for result in results.values():
        if result.error is not None:
            raise result.error
    return results


def make_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def describe_tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Every path with its kind, permissions and content; times of all but links."""
    described: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            content: object = None
            if path.is_symlink():
                content = os.readlink(path)  # noqa: PTH115 - a path would normalize the target
            elif path.is_file():
                content = path.read_bytes()
            mode = stat.S_IMODE(status.st_mode)
            times = None if path.is_symlink() else status.st_mtime_ns
            described[str(path.relative_to(root))] = (stat.S_IFMT(status.st_mode), mode, times, content)
    return described


def test_a_tree_arrives_as_it_is(tmp_path: Path) -> None:
    """Contents, permissions, times, links, empty files and directories, and names of any bytes."""
    here = make_files(
        tmp_path / "here",
        {
            "a": b"a",
            "run.sh": b"#!/bin/sh",
            "empty": b"",
            "deep/er/file": b"x" * 5000,
            "big": os.urandom(SMALL_BYTES + 5),
            "deep/big": os.urandom(SMALL_BYTES * 2),
            "new\nline; rm -rf $HOME 'q\" `x`": b"hostile",
            "-rf": b"dash",
            os.fsdecode(b"bad\xff\xfe"): b"bytes",
            "\u00fc\u00e4 \u4e2d": b"unicode",
        },
    )
    (here / "run.sh").chmod(0o755)
    (here / "a").chmod(0o400)
    (here / "nothing").mkdir(mode=0o700)
    (here / "link").symlink_to("deep/er/file")
    (here / "away").symlink_to("/etc/passwd")
    (here / "loop").symlink_to(".")
    os.utime(here / "a", ns=(1, 1_000_000_000_123_456_789))
    os.utime(here / "deep", ns=(1, 1_111_111_111_000_000_001))
    os.mkfifo(here / "pipe")
    (here / "locked").mkdir()
    make_files(here / "locked", {"inside": b"1"})
    (here / "locked").chmod(0o555)
    results = sync_code(tmp_path, "n1", "n2")
    (here / "pipe").unlink()
    for name in ("n1", "n2"):
        assert describe_tree(tmp_path / name / "tree") == describe_tree(here)
        assert results[name].files == 11
    again = sync_code(tmp_path, "n1", "n2")
    assert [(each.sent, each.files, each.changed) for each in again.values()] == [(0, 0, False)] * 2
    (here / "locked").chmod(0o755)
    (here / "locked/inside").write_bytes(b"22")
    (here / "locked").chmod(0o555)
    assert sync_code(tmp_path, "n1")["n1"].sent == 2
    assert describe_tree(tmp_path / "n1/tree") == describe_tree(here)


def test_only_changes_are_sent(tmp_path: Path) -> None:
    """By size and time first; where only the time differs, by hash, and then only the time is set."""
    here = make_files(tmp_path / "here", {f"d{n // 10}/f{n}": b"%d" % n * 100 for n in range(100)})
    sync_code(tmp_path, "n1")
    os.utime(here / "d0/f1")
    (here / "d0/f2").write_bytes(b"2" * 99)
    (here / "d0/f3").chmod(0o600)
    result = sync_code(tmp_path, "n1")["n1"]
    assert (result.files, result.sent) == (1, 99)
    assert describe_tree(tmp_path / "n1/tree") == describe_tree(here)


def test_what_is_extra_stays_unless_it_is_deleted(tmp_path: Path) -> None:
    """With --delete only what .gitignore doesn't exclude goes, and only inside of the tree."""
    here = make_files(tmp_path / "here", {"a": b"a", ".gitignore": b"*.log\ncache/\n", "d/b": b"b"})
    there = make_files(
        tmp_path / "n1/tree",
        {"old/x/y": b"1", "old/keep.log": b"2", "run.log": b"3", "cache/z": b"4", "d/extra": b"5", ".git/config": b"6"},
    )
    (there / "link").symlink_to(make_files(tmp_path / "outside", {"precious": b"p"}))
    assert sync_code(tmp_path, "n1")["n1"].deleted == 0
    assert (there / "old/x/y").exists()
    assert sync_code(tmp_path, "n1", delete=True, dry=True)["n1"].deleted > 0
    assert (there / "old/x/y").exists()
    assert sync_code(tmp_path, "n1", delete=True)["n1"].deleted == 4
    found = {path for path, entry in describe_tree(there).items() if entry[0] == stat.S_IFREG}
    assert found == {"a", ".gitignore", "d/b", "old/keep.log", "run.log", "cache/z", ".git/config"}
    assert (tmp_path / "outside/precious").read_bytes() == b"p"
    assert (here / "a").exists()


def test_a_link_in_the_target_leads_nowhere(tmp_path: Path) -> None:
    """A link where the head has a directory or a file is replaced, and nothing is written where it points."""
    make_files(
        tmp_path / "here", {"d/a": b"new", "d/big": b"n" * (SMALL_BYTES + 1), "f": b"new", "g": b"1" * 2_000_000}
    )
    outside = make_files(tmp_path / "outside", {"a": b"old", "big": b"old", "g": b"1" * 2_000_000})
    there = make_files(tmp_path / "n1/tree", {})
    there.mkdir(parents=True)
    (there / "d").symlink_to(outside)
    (there / "f").symlink_to(outside / "a")
    (there / "g").symlink_to(outside / "g")
    before = describe_tree(outside)
    sync_code(tmp_path, "n1")
    assert describe_tree(outside) == before
    assert describe_tree(there) == describe_tree(tmp_path / "here")


def test_a_file_and_a_directory_change_places(tmp_path: Path) -> None:
    """A file makes way for a directory; a directory with files makes way only with --delete, and is named."""
    make_files(tmp_path / "here", {"was-file/a": b"a", "was-folder": b"b"})
    there = make_files(tmp_path / "n1/tree", {"was-file": b"x", "was-folder/inside": b"y"})
    result = run_sync(tmp_path, [scan_code(tmp_path / "here", "~/tree")], "n1")["n1"]
    assert result.error is not None
    assert result.error.code == "spread-path"
    assert "was-folder can't be written: a directory with files is in the way" in result.error.seen
    sync_code(tmp_path, "n1", delete=True)
    assert describe_tree(there) == describe_tree(tmp_path / "here")


def test_one_node_that_fails_stops_no_other(tmp_path: Path) -> None:
    """A file in the place of the target directory fails one node, by name; the other has everything."""
    make_files(tmp_path / "here", {"a": b"a", "big": b"b" * (SMALL_BYTES + 1)})
    make_files(tmp_path / "n1", {"tree": b"in the way"})
    results = run_sync(tmp_path, [scan_code(tmp_path / "here", "~/tree")], "n1", "n2")
    assert results["n1"].error is not None
    assert results["n1"].error.seen.startswith("n1: ")
    assert results["n2"].error is None
    assert describe_tree(tmp_path / "n2/tree") == describe_tree(tmp_path / "here")


def test_nodes_that_share_a_disk_get_one_copy(tmp_path: Path) -> None:
    """The first of them receives the files; the others find them there."""
    here = make_files(tmp_path / "here", {"a": b"a" * 100, "big": b"b" * (SMALL_BYTES + 1)})
    results = run_sync(tmp_path, [scan_code(here, str(tmp_path / "shared"))], "n1", "n2", "n3")
    assert [each.error for each in results.values()] == [None] * 3
    assert sum(each.sent for each in results.values()) == SMALL_BYTES + 101
    assert describe_tree(tmp_path / "shared") == describe_tree(here)


def test_data_follows_links_to_files(tmp_path: Path) -> None:
    """A model in a hub cache is links to blobs: nodes get the files; .gitignore doesn't apply to data."""
    blob = make_files(tmp_path / "models--a--b/blobs", {"x": b"weights"}) / "x"
    model = make_files(tmp_path / "model", {".gitignore": b"*", "config.json": b"{}"})
    (model / "weights").symlink_to(blob)
    file = make_files(tmp_path / "data", {"train.jsonl": b"{}", "other": b"no"}) / "train.jsonl"
    trees = [scan_data(model, "~/model"), scan_file(file, "~/data", is_data=True)]
    assert run_sync(tmp_path, trees, "n1", delete=True)["n1"].error is None
    assert (tmp_path / "n1/model/weights").read_bytes() == b"weights"
    assert not (tmp_path / "n1/model/weights").is_symlink()
    assert sorted(path.name for path in (tmp_path / "n1/data").iterdir()) == ["train.jsonl"]


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/etc/passwd", "d//a", "link/a"])
def test_a_node_refuses_paths_that_lead_out(tmp_path: Path, path: str) -> None:
    """Whatever a head asks, nothing outside of the tree is deleted, stamped or written."""
    make_files(tmp_path, {"a": b"precious", "tree/d/x": b"x"})
    (tmp_path / "tree/link").symlink_to(tmp_path)
    tree = ReceiveTree(str(tmp_path / "tree"))
    folder, _, name = path.rpartition("/")
    requests: list[dict[str, Any]] = [
        {"op": "porter", "do": "tree-delete", "paths": [path]},
        {"op": "porter", "do": "tree-stamp", "entries": [[path, 0, 0]]},
        {"op": "porter", "do": "tree-make", "folders": [[path, 0o700]], "links": []},
        {"op": "piece", "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
         "pack": [[folder, [[name, 1, 0o644, 0]]]]},
    ]  # fmt: skip
    for request in requests:
        try:
            tree.take(request, memoryview(b"x"), float("inf"))
        except (BadName, OSError):
            continue
        assert request.get("do") == "tree-delete"
    assert (tmp_path / "a").read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "tree"]
