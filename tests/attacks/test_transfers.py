"""Attacks on transfers of files: links in a cloned repository, local users of a node, and nodes that lie."""

import asyncio
from pathlib import Path, PurePosixPath

import pytest
from node_homes import HomeTransport

from aboard.agent.transfer.receive_folders import ReceiveFolders
from aboard.core.cluster.file_sync import CollectedPath
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import file_fetch
from aboard.flows.sync.collect_paths import collect_from_nodes
from aboard.transport.node_dialer import NodeDialer


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in a home with a file that is nobody else's business; its node has results."""
    folder = tmp_path / "home/repository"
    (folder / "back/n1").mkdir(parents=True)
    (tmp_path / "home/.bashrc").write_text("mine")
    (tmp_path / "n1/results").mkdir(parents=True)
    (tmp_path / "n1/results/rc").write_text("touch ~/mark")
    monkeypatch.chdir(folder)
    return folder


def collect(homes: Path, path: str) -> CollectedPath:
    """`aboard sync --back PATH` from n1."""

    async def main() -> CollectedPath:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        try:
            return (await collect_from_nodes([Node(name="n1")], [PurePosixPath(path)], Path("back"), dialer))[0]
        finally:
            await dialer.close()

    return asyncio.run(main())


@pytest.mark.parametrize("link", ["back/n1/results", "back/n1", "back"])
def test_files_from_nodes_are_not_written_through_a_link_of_the_repository(
    tmp_path: Path, repository: Path, link: str
) -> None:
    """A link that was committed where collected files go leads nowhere: nothing is written in the user's home."""
    place = repository / link
    for folder in (repository / "back/n1", repository / "back"):
        if folder.is_relative_to(place):
            folder.rmdir()
    place.symlink_to(tmp_path / "home", target_is_directory=True)
    try:
        error = collect(tmp_path, "~/results").error
    except AboardError as raised:
        error = raised
    assert isinstance(error, AboardError)
    assert error.diagnosis is file_fetch.TARGET
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == [".bashrc", "repository"]


def test_the_file_that_keeps_collected_files_out_of_a_sync_replaces_no_other(tmp_path: Path, repository: Path) -> None:
    """A committed link `back/.gitignore` does not make `sync --back` overwrite the file that it leads to."""
    (repository / "back/.gitignore").symlink_to("../../.bashrc")
    assert collect(tmp_path, "~/results").files == 1
    assert (tmp_path / "home/.bashrc").read_text() == "mine"
    assert (repository / "back/.gitignore").read_text() == "*\n"


def test_a_node_brings_no_git_repository(tmp_path: Path, repository: Path) -> None:
    """`.git/config` names programs that git, and many a prompt, runs: it is left out, and counted."""
    (tmp_path / "n1/results/.git").mkdir()
    (tmp_path / "n1/results/.git/config").write_text("[core]\nfsmonitor = touch ~/mark\n")
    assert collect(tmp_path, "~/results").skipped == 2
    assert [path.name for path in (repository / "back/n1/results").iterdir()] == ["rc"]


def test_a_path_that_ends_with_dots_stays_in_the_folder_of_its_node(tmp_path: Path, repository: Path) -> None:
    """`--back DIR/..` does not let a node write beside the folder that has its name."""
    collect(tmp_path, "~/results/..")
    assert sorted(path.name for path in (repository / "back").iterdir()) == [".gitignore", "n1"]


def test_equal_files_are_collected(tmp_path: Path, repository: Path) -> None:
    """Files of equal content, which nodes may write by the thousand, don't stop each other."""
    for name in ("a", "b", "c"):
        (tmp_path / "n1/results" / name).touch()
    assert collect(tmp_path, "~/results").error is None
    assert sorted(path.name for path in (repository / "back/n1/results").iterdir()) == ["a", "b", "c", "rc"]


def test_a_private_file_is_private_while_it_arrives(tmp_path: Path) -> None:
    """Other users of a node can't read a file of mode 600 before it has its name, and not after an interruption."""
    sha256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    asked = {"op": "porter", "do": "receive", "folder": str(tmp_path), "name": "a", "bytes": 3, "sha256": sha256}
    folders = ReceiveFolders()
    folders.take({**asked, "mode": 0o640}, memoryview(b""), float("inf"))
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]
    folders.take({"op": "piece", "folder": str(tmp_path), "at": 0}, memoryview(b"foo"), float("inf"))
    folders.take({"op": "porter", "do": "publish", "folder": str(tmp_path)}, memoryview(b""), float("inf"))
    folders.close()
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"a": 0o640}
