"""Attacks on transfers of files: links in a cloned repository, local users of a node, and nodes that lie."""

import asyncio
import json
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest
from deadlines import within
from node_homes import HomeTransport

from aboard.agent.transfer.receive_folders import ReceiveFolders
from aboard.commands.sync.environment.installed_distributions import read_environment
from aboard.commands.sync.environment.wheel_packing import pack_distribution
from aboard.commands.sync.trees.collect_paths import collect_from_nodes
from aboard.commands.sync.trees.source_tree import scan_code
from aboard.commands.sync.trees.sync_trees import sync_trees
from aboard.core.cluster.file_sync import CollectedPath
from aboard.core.cluster.node import Node
from aboard.core.decoding import DecodeError, decode
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import file_fetch
from aboard.doctor.network.mesh_probe import ListenReply
from aboard.transport.files.file_sender import FileSender
from aboard.transport.files.peer_control import PeerControl, PeerEndpoint
from aboard.transport.files.tree_sender import TreeSender, _Listing
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.shell.node_shell import NodeShell
from aboard.transport.subprocess_stream import ProcessStream


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


def test_a_private_directory_is_private_before_files_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users of a node can't look into a directory of mode 700 while a sync fills it."""
    source = tmp_path / "source"
    source.mkdir(mode=0o700)
    (source / "notes").write_text("mine")
    modes = []
    send_packs = TreeSender.send_packs

    async def look(self: TreeSender, *args: Any) -> None:
        modes.append((tmp_path / "n1/private").stat().st_mode & 0o777)
        await send_packs(self, *args)

    monkeypatch.setattr(TreeSender, "send_packs", look)

    async def main() -> None:
        dialer = NodeDialer(lambda _node: HomeTransport(tmp_path))
        try:
            await sync_trees([Node(name="n1")], [scan_code(source, "~/private")], dialer, hashes=tmp_path / "hashes")
        finally:
            await dialer.close()

    asyncio.run(main())
    assert modes == [0o700]
    assert (tmp_path / "n1/private/notes").read_text() == "mine"


@pytest.mark.parametrize(("address", "port"), [("127.0.0.1", 99_999_999), ("999.999.999.999", 9), ("dead.beef", 9)])
def test_a_node_that_reports_an_impossible_port_stops_no_other(tmp_path: Path, address: str, port: int) -> None:
    """Nodes connect to what others report: the head refuses what is no address and port, and so does the agent."""
    with pytest.raises(DecodeError):
        decode(PeerEndpoint, {"address": address, "ports": [port]}, strict=True)
    assert decode(ListenReply, {"ports": [{"port": 99_999_999}]}).ports[0].port == 0

    async def main() -> tuple[int, ...]:
        sender = FileSender((await NodeDialer(lambda _node: HomeTransport(tmp_path)).dial(Node(name="n1"))).link)
        try:
            control = PeerControl(sender, "~/model")
            await control.open(me=0, key=bytes(32), address="127.0.0.1", ports=[0])
            await control.dial([(1, PeerEndpoint(address=address, ports=(port,)))])
            return tuple((await control.status(0, 0, 0.1)).unreached)
        finally:
            await sender.close()

    assert asyncio.run(main()) == (1,)


def test_a_node_that_lists_files_without_end_does_not_fill_the_memory() -> None:
    """`aboard sync` keeps what it looks for, and with --delete a million others; then the listing is refused."""
    rows = [[0, f"f{number}", 0o100644, 0, 0] for number in range(1000)]
    wanted = _Listing(lambda path: path == "f7", 0)
    for _ in range(3):
        assert wanted.add([""], {"found": rows, "more": True})
    assert list(wanted.found) == ["f7"]
    extra = _Listing(lambda path: path == "f7", 1500)
    assert extra.add([""], {"found": rows, "more": True})
    with pytest.raises(ValueError, match="more than 1,500 files"):
        extra.add([""], {"found": rows, "more": True})
    deep = "/".join(["d" * 250] * 16)
    with pytest.raises(ValueError, match="too long"):
        _Listing(lambda _path: False, 1500).add([deep], {"found": [[0, "e" * 250, 0o040755, 0, 0]], "more": False})


DAMAGED = {
    "a zero byte": {"RECORD": "a\0b/evil.py,,\n"},
    "a huge field": {"RECORD": f'"{"a" * 200_000}",,\n'},
    "a long name": {"METADATA": f"Name: {'a' * 300}\nVersion: 1\n"},
    "a long version": {"METADATA": f"Name: evil\nVersion: {'1' * 300}\n"},
}


@pytest.mark.parametrize("files", DAMAGED.values(), ids=DAMAGED)
def test_a_package_with_crafted_metadata_is_named(tmp_path: Path, files: dict[str, str]) -> None:
    """`aboard sync --env` names a package whose metadata makes no sense."""
    metadata = make_package(tmp_path, files)
    with pytest.raises(AboardError, match="no RECORD lists the files of evil"):
        read_environment(tmp_path, metadata.parent)


def test_a_package_takes_no_file_from_outside_of_its_environment(tmp_path: Path) -> None:
    """A RECORD, or the finder of an editable installation, that names other files adds none of them to a wheel."""
    record = "../../../secret,,\n/etc/hostname,,\nevil.py,,\n__editable___finder.py,,\n"
    finder = {"../__editable___finder.py": "MAPPING = {'../../x': '/etc/hostname', 'evil': '/nowhere'}"}
    long_tag = {"WHEEL": f"Tag: {'a' * 400}-b-c\n"}
    deep = {"direct_url.json": "[" * 100_000}
    (tmp_path / "secret").write_text("mine")
    environment = tmp_path / "environment"
    metadata = make_package(environment, {"RECORD": record, **finder, **long_tag, **deep})
    (found,) = read_environment(environment, metadata.parent).distributions
    assert [file.name for file in found.files] == ["__editable___finder.py", "evil.py"]
    packed = pack_distribution(found, tmp_path / "cache", environment, "lib/site")
    assert len(packed.file) < 255
    editable = {"direct_url.json": json.dumps({"url": "file:///x", "dir_info": {"editable": True}})}
    metadata = make_package(environment, {"RECORD": record, **finder, **editable})
    with pytest.raises(AboardError, match="no package was found"):
        read_environment(environment, metadata.parent)


def make_package(prefix: Path, files: dict[str, str]) -> Path:
    """An environment with one package, whose metadata has these files; returns the directory of that."""
    metadata = prefix / "lib/site/evil-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata.parent / "evil.py").touch()
    for name, text in {"METADATA": "Name: evil\nVersion: 1\n", "RECORD": "evil.py,,\n", **files}.items():
        (metadata / name).write_text(text)
    return metadata


def test_a_shell_that_answers_in_crumbs_leaves_time_for_others() -> None:
    """A node that answers `aboard trust` with megabytes in small parts does not keep the head busy for minutes."""

    class Stream:
        """The parts of an answer, as they come over a slow link."""

        left = 40_000

        def write(self, data: bytes) -> None:
            self.end = b"\n%b 0\n" % data.rsplit(b" ", 2)[1]

        async def drain(self) -> None:
            pass

        async def read(self, _size: int) -> bytes:
            self.left -= 1
            return self.end if self.left == 0 else b"x" * 200

    with within(20):
        reply = asyncio.run(NodeShell(cast("ProcessStream", Stream()), []).run(":"))
    assert len(reply.output) == 39_999 * 200
