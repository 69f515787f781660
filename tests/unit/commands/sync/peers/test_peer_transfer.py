"""Nodes pass large files on to each other: agents on this machine, each with a home of its own, over loopback."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agent.transfer.test_file_transfer import SOON, contents, entry, folder, packed
from deadlines import wait_until
from node_homes import HomeTransport

from aboard.agent.transfer.partial_file import part_name, piece_part_name
from aboard.commands.sync.peers import piece_rounds
from aboard.commands.sync.peers.piece_rounds import PIECE_BYTES
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.commands.sync.sync_files import SyncResult, UploadProgress, sync_files
from aboard.commands.sync.trees.source_tree import SourceTree, scan_code, scan_data
from aboard.commands.sync.trees.sync_trees import sync_trees
from aboard.core.cluster.file_sync import NodeTreeResult
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.node_dialer import DialResult, NodeDialer
from aboard.transport.transport import OnPhase

MB = 1024 * 1024


class KnownAgents(NodeDialer):
    """Remembers the process of each node's agent; the node `dead` is reached only once."""

    def __init__(self, homes: Path, dead: str = "") -> None:
        super().__init__(lambda _node: HomeTransport(homes))
        self._dead = dead
        self.pids: dict[str, list[int]] = {}

    async def dial(self, node: Node, on_phase: OnPhase = print) -> DialResult:
        if node.name == self._dead and self.pids.get(node.name):
            raise Unreachable(UnreachableReason.TIMED_OUT, f"{node.name}: no connection")
        dialled = await super().dial(node, on_phase)
        self.pids.setdefault(node.name, []).append(dialled.link.hello["pid"])
        return dialled


def spread(
    homes: Path,
    directories: Sequence[SyncDirectory],
    *nodes: str,
    heard: list[UploadProgress] | None = None,
    kill: str | None = None,
    address: str = "127.0.0.1",
) -> SyncResult:
    """Syncs to these nodes; the agent of `kill` dies when its first piece arrives."""

    async def main() -> SyncResult:
        dialer = KnownAgents(homes)
        killing = asyncio.create_task(kill_agent(dialer)) if kill else None
        try:
            return await sync_files(
                [Node(name=name, fabric_address=address if name == "n3" else "127.0.0.1") for name in nodes],
                directories,
                dialer,
                on_progress=(heard if heard is not None else []).append,
            )
        finally:
            if killing is not None:
                assert killing.done()
                assert len(dialer.pids[kill or ""]) == 2
            await dialer.close()

    async def kill_agent(dialer: KnownAgents) -> None:
        await kill_when_receiving(dialer, homes, str(kill))

    return asyncio.run(main())


async def kill_when_receiving(dialer: KnownAgents, homes: Path, node: str) -> None:
    def is_receiving() -> bool:
        return any((homes / node / "model").glob(".aboard-*.pieces.part"))

    await asyncio.to_thread(wait_until, is_receiving, SOON)
    os.kill(dialer.pids[node][0], signal.SIGKILL)


def large(path: Path, to: str = "~/model") -> SyncDirectory:
    return replace(packed(path, to), peers=True)


@pytest.mark.ci
def test_the_head_sends_each_piece_once(tmp_path: Path) -> None:
    """Every node has the file in the end, most of it from its peers; nothing else is left in the directory."""
    content = os.urandom(9 * MB + 17)
    model = folder(tmp_path / "model", a=content, small=b"s")
    heard: list[UploadProgress] = []
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3", "n4", heard=heard)
    for node in ("n1", "n2", "n3", "n4"):
        assert contents(tmp_path / node / "model") == {"a": content, "small": b"s"}
    assert done.sent == len(content) + 4
    assert done.sent + sum(node.from_peers for node in done.nodes.values()) == 4 * (len(content) + 1)
    assert done.findings == ()
    last = {progress.node: (progress.phase, progress.done) for progress in heard}
    assert set(last.values()) == {("done", len(content) + 1)}
    # The hash of what peers sent is remembered, like that of any file.
    assert spread(tmp_path, [large(model)], "n1", "n2").sent == 0


def test_code_and_small_files_come_from_the_head_only(tmp_path: Path) -> None:
    """Without the directory's permission nothing goes from node to node, and neither do small files."""
    model = folder(tmp_path / "model", a=os.urandom(9 * MB))
    done = spread(tmp_path, [packed(model)], "n1", "n2")
    assert [(node.sent, node.from_peers) for node in done.nodes.values()] == [(9 * MB, 0), (9 * MB, 0)]
    small = folder(tmp_path / "small", a=os.urandom(7 * MB))
    done = spread(tmp_path, [large(small, "~/small")], "n1", "n2")
    assert [(node.sent, node.from_peers) for node in done.nodes.values()] == [(7 * MB, 0), (7 * MB, 0)]


@pytest.mark.ci
def test_a_node_that_has_the_file_is_the_source(tmp_path: Path) -> None:
    """The head sends nothing, also if a single node lacks the file."""
    content = os.urandom(9 * MB)
    model = folder(tmp_path / "model", a=content)
    folder(tmp_path / "n2/model", a=content)
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3")
    assert done.sent == 0
    assert [node.from_peers for node in done.nodes.values()] == [9 * MB, 0, 9 * MB]
    assert spread(tmp_path, [large(model)], "n4", "n2").nodes["n4"].from_peers == 9 * MB
    assert contents(tmp_path / "n4/model") == {"a": content}


def test_pieces_of_a_killed_transfer_are_used(tmp_path: Path) -> None:
    """Whatever is there is found by its hash: pieces in any place, damaged ones, and the beginning of a plain copy."""
    content = os.urandom(5 * PIECE_BYTES)
    sha256 = entry("a", content).sha256
    model = folder(tmp_path / "model", a=content)
    gaps = bytearray(content)
    gaps[PIECE_BYTES : 2 * PIECE_BYTES] = bytes(PIECE_BYTES)
    gaps[4 * PIECE_BYTES + 7] ^= 1
    folder(tmp_path / "n1/model", **{piece_part_name(sha256): bytes(gaps)})
    folder(tmp_path / "n2/model", **{part_name(sha256): content[: 2 * PIECE_BYTES + 100]})
    done = spread(tmp_path, [large(model)], "n1", "n2")
    # Only the last piece is nowhere; the second comes from n2, and n2 gets two from n1.
    assert done.sent == PIECE_BYTES
    assert done.sent + sum(node.from_peers for node in done.nodes.values()) == 5 * PIECE_BYTES
    for node in ("n1", "n2"):
        assert contents(tmp_path / node / "model") == {"a": content}


def test_what_peers_left_does_not_stay(tmp_path: Path) -> None:
    """A file with gaps that only the head can complete is replaced by a plain copy."""
    content = os.urandom(9 * MB)
    model = folder(tmp_path / "model", a=content)
    folder(tmp_path / "n1/model", **{piece_part_name(entry("a", content).sha256): content[:PIECE_BYTES]})
    assert spread(tmp_path, [large(model)], "n1").sent == 9 * MB
    assert contents(tmp_path / "n1/model") == {"a": content}


@pytest.mark.ci
def test_an_agent_that_dies_in_the_middle_goes_on(tmp_path: Path) -> None:
    """Its link is dialled again, its pieces are still there, and the others do not wait for it."""
    content = os.urandom(64 * MB)
    model = folder(tmp_path / "model", a=content)
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3", kill="n2")
    for node in ("n1", "n2", "n3"):
        assert contents(tmp_path / node / "model") == {"a": content}
    assert done.sent < 2 * len(content)


@pytest.mark.ci
def test_a_node_that_does_not_come_back_is_named(tmp_path: Path) -> None:
    """The others get everything, also the pieces that only the dead node had."""
    content = os.urandom(64 * MB)
    model = folder(tmp_path / "model", a=content)
    failed: dict[str, AboardError] = {}

    async def main() -> SyncResult:
        dialer = KnownAgents(tmp_path, dead="n2")
        killing = asyncio.create_task(kill_when_receiving(dialer, tmp_path, "n2"))
        nodes = [Node(name=name, fabric_address="127.0.0.1") for name in ("n1", "n2", "n3")]
        try:
            return await sync_files(nodes, [large(model)], dialer, on_failed=failed.__setitem__)
        finally:
            await killing
            await dialer.close()

    done = asyncio.run(main())
    assert (list(done.nodes), list(failed)) == (["n1", "n3"], ["n2"])
    assert failed["n2"].code == "spread-lost"
    for node in ("n1", "n3"):
        assert contents(tmp_path / node / "model") == {"a": content}


@pytest.mark.ci
def test_a_node_that_serves_wrong_bytes_is_named(tmp_path: Path) -> None:
    """Its peers notice by the hash, do not ask it again, and get the right bytes from the head and each other."""
    content = os.urandom(9 * MB)
    model = folder(tmp_path / "model", a=content)
    spread(tmp_path, [large(model)], "n1")
    # n1 believes its cache, and its file changed without a new time stamp.
    (cache,) = (tmp_path / "n1/.cache/aboard/sums").iterdir()
    there = tmp_path / "n1/model/a"
    there.write_bytes(bytes(9 * MB))
    status = there.stat()
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    cache.write_text(json.dumps({"a": [*stamp, entry("a", content).sha256]}))
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3")
    for node in ("n2", "n3"):
        assert contents(tmp_path / node / "model") == {"a": content}
    (finding,) = done.findings
    assert (finding.code, finding.nodes) == ("peer-wrong-bytes", ("n1",))
    assert finding.seen == "n1 sent a piece that differs from its hash to n2, n3"
    assert done.sent < 2 * len(content)


def test_a_node_that_cannot_listen_gets_its_files_from_the_head(tmp_path: Path) -> None:
    """The address of another machine: the others exchange pieces all the same, and the result says who did not."""
    content = os.urandom(9 * MB)
    model = folder(tmp_path / "model", a=content)
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3", address="192.0.2.1")
    assert [contents(tmp_path / node / "model") for node in ("n1", "n2", "n3")] == [{"a": content}] * 3
    assert (done.nodes["n3"].sent, done.nodes["n3"].from_peers) == (9 * MB, 0)
    assert done.nodes["n1"].from_peers + done.nodes["n2"].from_peers == 9 * MB
    (finding,) = done.findings
    assert (finding.code, finding.nodes) == ("peer-blocked", ("n3",))
    assert "n3 took no part in passing files on" in finding.seen


@pytest.mark.ci
def test_only_data_of_a_tree_goes_from_node_to_node(tmp_path: Path) -> None:
    """Also in subdirectories; the same file in a tree of code comes from the head."""
    content = os.urandom(9 * MB)
    tree = folder(tmp_path / "tree/sub", a=content).parent

    def sync(to: SourceTree, *names: str) -> Mapping[str, NodeTreeResult]:
        async def main() -> Mapping[str, NodeTreeResult]:
            dialer = KnownAgents(tmp_path)
            nodes = [Node(name=name, fabric_address="127.0.0.1") for name in names]
            try:
                return await sync_trees(nodes, [to], dialer, hashes=tmp_path / "hashes.json")
            finally:
                await dialer.close()

        return asyncio.run(main())

    code = sync(scan_code(tree, "~/code"), "n1", "n2")
    assert [(node.sent, node.from_peers, node.error) for node in code.values()] == [(9 * MB, 0, None)] * 2
    data = sync(scan_data(tree, "~/data"), "n1", "n2")
    assert sum(node.sent for node in data.values()) == sum(node.from_peers for node in data.values()) == 9 * MB
    # Those that have it pass it on to a node that comes later.
    assert sync(scan_data(tree, "~/data"), "n1", "n2", "n3")["n3"].from_peers == 9 * MB
    for name in ("n1", "n2", "n3"):
        assert contents(tmp_path / name / "data/sub") == {"a": content}


@pytest.mark.ci
def test_many_files_go_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is hashed while the one before is sent; each node fetches what it lacks and passes on what it has."""
    monkeypatch.setattr(piece_rounds, "ROUND_BYTES", 10 * MB)
    files = {name: os.urandom(9 * MB) for name in "abc"}
    model = folder(tmp_path / "model", **files)
    folder(tmp_path / "n1/model", b=files["b"])
    folder(tmp_path / "n2/model", a=files["a"])
    heard: list[UploadProgress] = []
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3", heard=heard)
    for node in ("n1", "n2", "n3"):
        assert contents(tmp_path / node / "model") == files
    assert done.sent == 9 * MB
    assert [node.sent + node.from_peers for node in done.nodes.values()][2] == 27 * MB
    amounts = [progress.done for progress in heard if progress.node == "n3" and progress.phase == "sending"]
    assert amounts == sorted(amounts)
