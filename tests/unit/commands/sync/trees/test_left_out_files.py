"""What .gitignore keeps from the nodes is said, with the command that sends it; a home directory is never sent."""

import shlex
from pathlib import Path

import pytest

from aboard.commands.sync.command import sync
from aboard.commands.sync.sync_view import format_left_out
from aboard.commands.sync.trees.sync_sources import TrainingFiles, list_left_out, scan_sources, scan_working_directory
from aboard.commands.sync.trees.tree_difference import find_extra
from aboard.diagnoses import AboardError
from aboard.engine.request.node_arguments import NodeArguments
from aboard.transport.files.tree_sender import TreeEntry


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in LMFlow and gpt-neox: the .gitignore names the data that the guides train on."""
    files = {
        ".gitignore": "data/\n*.bin\n__pycache__/\n*.log\n",
        "train.py": "",
        "data/alpaca/train.json": "x" * 5000,
        "data/alpaca/test.json": "x" * 1000,
        "shards/a b.bin": "x" * 3000,
        "out.log": "x",
        "__pycache__/train.pyc": "x" * 9000,
        ".git/objects/pack": "x" * 9000,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_gitignore_names_is_counted_and_named_with_the_command_that_sends_it(project: Path) -> None:
    """The count, the size, the largest paths first, and a command that can be pasted; caches are no news."""
    left_out = list_left_out(scan_sources((), (), TrainingFiles()))
    assert [(each.path, each.files, each.bytes) for each in left_out] == [
        ("data", 2, 6000),
        ("shards/a b.bin", 1, 3000),
        ("out.log", 1, 1),
    ]
    first, command, every = format_left_out(left_out, flag=True)
    assert "4 files, 8.8 KiB: data/ (2 files, 5.9 KiB), shards/a b.bin (2.9 KiB), out.log (1 B)" in first
    assert every.split("#")[0].strip().endswith("aboard sync --ignored")
    words = shlex.split(command.partition(": ")[2])[2:]
    parsed = sync.make_context("sync", list(words)).params["data"]
    assert [set(tree.files) for tree in scan_sources((), parsed, TrainingFiles())] == [
        {"alpaca/train.json", "alpaca/test.json"},
        {"a b.bin"},
        {"out.log"},
    ]


def test_the_command_that_sends_it_names_the_same_nodes(project: Path) -> None:
    """Both lines keep what was typed about the nodes, and no secret."""
    typed = NodeArguments(
        nodes=("n[1-2]", "n3"),
        hostfile="my hosts",
        include="",
        exclude="n4",
        sets=("cluster.port=2", "cluster.env.HF_TOKEN=abc"),
    )
    left_out = list_left_out(scan_sources((), (), TrainingFiles()))
    for line in format_left_out(left_out, flag=True, nodes=typed.list_words())[1:]:
        words = shlex.split(line.partition(": ")[2], comments=True)[2:]
        got = sync.make_context("sync", words).params
        assert (got["nodes"], got["hostfile"], got["exclude"], got["sets"]) == (
            ("n[1-2]", "n3"),
            "my hosts",
            "n4",
            ("cluster.port=2",),
        )


def test_at_most_five_paths_are_named(project: Path) -> None:
    """The others are counted."""
    for number in range(9):
        (project / f"{number}.bin").write_text("x" * (number + 10))
    first, command, _every = format_left_out(list_left_out(scan_sources((), (), TrainingFiles())), flag=True)
    assert first.endswith(", and 7 more")
    assert command.count("--data") == 5
    assert format_left_out([], flag=True) == []


def test_ignored_sends_what_gitignore_names_and_still_protects_it_from_deletion(project: Path) -> None:
    """A node may have written such files itself; .git and compiled files stay here."""
    (tree,) = scan_sources((), (), TrainingFiles(), ignored=True)
    assert {"data/alpaca/train.json", "shards/a b.bin", "out.log"} <= set(tree.files)
    assert not any("__pycache__" in path or ".git/" in path for path in tree.files)
    assert tree.left_out == ()
    written = {name: TreeEntry(mode=0o100644, size=1, mtime_ns=1, target=None) for name in ("node.log", "old.py")}
    assert find_extra(tree, written)[0] == ["old.py"]


@pytest.mark.parametrize("where", [".", "..", "/", ".ssh", ".ssh/authorized_keys"])
def test_a_home_directory_and_its_keys_are_never_sent(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as the working directory, not as a path, not as data, and not through a link."""
    home = tmp_path / "users/me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/authorized_keys").write_text("ssh-ed25519 key")
    (home / "project").mkdir()
    monkeypatch.setenv("HOME", str(home))
    path = home / where
    link = tmp_path / "link"
    link.symlink_to(path)
    for code, data in [((path,), ()), ((), (path,)), ((link,), ())]:
        with pytest.raises(AboardError) as error:
            scan_sources(code, data, TrainingFiles())
        assert error.value.code == "sync-home"
    if path.is_dir() and ".ssh" not in where:
        monkeypatch.chdir(path)
        with pytest.raises(AboardError, match="home directory"):
            scan_working_directory(TrainingFiles())
    monkeypatch.chdir(home / "project")
    assert scan_working_directory(TrainingFiles()).to == "~/project"
