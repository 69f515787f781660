"""Spreading to agents on this machine, each with a home of its own: who has what, by hash, and nothing outside."""

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until
from node_homes import HomeTransport, LyingTransport

from aboard.agent import frames, process_tree
from aboard.agent.transfer.file_names import BadName, validate_file_name
from aboard.agent.transfer.partial_file import PartialFile, part_name
from aboard.agent.transfer.receive_folders import MARK, ReceiveFolders
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.commands.sync.sync_files import SyncResult, UploadProgress, sync_files
from aboard.commands.train.input_directory import build_sync_directory
from aboard.core.cluster.file_transfer_errors import build_write_error
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, AgentRequestError, ProtocolError, Unreachable
from aboard.diagnoses.untrusted import Untrusted
from aboard.durable_files import FileEntry
from aboard.transport.agent_link import open_link
from aboard.transport.files.file_sender import (
    FIRST_WINDOW,
    LEAST_WINDOW,
    MOST_WINDOW,
    SPAN_SECONDS,
    FileSender,
    SendWindow,
)
from aboard.transport.node_dialer import NodeDialer

SOON = 5.0


def sent(
    homes: Path, parcels: Sequence[SyncDirectory], *nodes: str, heard: list[UploadProgress] | None = None
) -> SyncResult:
    async def main() -> SyncResult:
        fleet = NodeDialer(lambda _node: HomeTransport(homes))
        told = [] if heard is None else heard
        try:
            return await sync_files([Node(name=name) for name in nodes], parcels, fleet, on_progress=told.append)
        finally:
            await fleet.close()

    return asyncio.run(main())


def folder(path: Path, **contents: bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return path


def packed(path: Path, to: str = "~/model") -> SyncDirectory:
    return build_sync_directory(path, hashes=path.parent / "hashes.json", to=to)


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def entry(name: str, content: bytes) -> FileEntry:
    return FileEntry(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def test_all_end_with_the_same(tmp_path: Path) -> None:
    """Each node has all files in the end; one that had them, or some of them, is sent only what it lacked."""
    model = folder(tmp_path / "model", a=b"a" * 100, b=b"b" * 300_000, empty=b"")
    folder(tmp_path / "n2/model", a=b"a" * 100, b=b"b" * 299_999 + b"x", mine=b"own")
    heard: list[UploadProgress] = []
    done = sent(tmp_path, [packed(model)], "n1", "n2", heard=heard)
    assert (done.nodes["n1"].sent, done.nodes["n1"].had) == (300_100, 0)
    assert (done.nodes["n2"].sent, done.nodes["n2"].had) == (300_000, 100)
    assert done.nodes["n2"].extra == ("~/model/mine",)
    assert contents(tmp_path / "n1/model") == contents(model)
    assert contents(tmp_path / "n2/model") == {**contents(model), "mine": b"own"}
    last = {progress.node: (progress.phase, progress.done, progress.total) for progress in heard}
    assert last == {"n1": ("done", 300_100, 300_100), "n2": ("done", 300_000, 300_000)}
    again = sent(tmp_path, [packed(model)], "n1", "n2")
    assert again.sent == 0
    assert again.nodes["n1"].had == 300_100


def test_several_parcels_and_a_manifest_that_comes_last(tmp_path: Path) -> None:
    """A set is no set before its manifest is there, so that is sent last; each parcel goes to its own directory."""
    bins = b"1" * 20
    listed = {"name": "bins", "bytes": 20, "sha256": hashlib.sha256(bins).hexdigest()}
    manifest = json.dumps({"format": "aboard-bins", "bin_file": listed}).encode()
    made = folder(tmp_path / "set", bins=bins, other=b"not in the manifest", **{"manifest.json": manifest})
    both = [packed(made, "~/set"), packed(folder(tmp_path / "model", a=b"a"))]
    assert [file.name for file in both[0].files] == ["bins", "manifest.json"]
    sent(tmp_path, both, "n1")
    assert sorted(contents(tmp_path / "n1/set")) == ["bins", "manifest.json"]
    assert contents(tmp_path / "n1/model") == {"a": b"a"}


def test_one_disk_gets_one_copy(tmp_path: Path) -> None:
    """Nodes that see each other's mark leave the sending to the first; no mark stays."""
    model = folder(tmp_path / "model", a=b"a" * 1000)
    done = sent(tmp_path, [packed(model, str(tmp_path / "shared"))], "n1", "n2", "n3")
    assert [(node.sent, node.same_disk_as) for node in done.nodes.values()] == [(1000, None), (0, "n1"), (0, "n1")]
    assert contents(tmp_path / "shared") == contents(model)


def test_a_part_goes_on(tmp_path: Path) -> None:
    """What is there of a file isn't sent again; the rest of another file is no part of it, and is cleared away."""
    content = os.urandom(600_000)
    model = folder(tmp_path / "model", a=content)
    stale = part_name("0" * 64)
    folder(tmp_path / "n1/model", **{part_name(entry("a", content).sha256): content[:400_000], stale: b"old"})
    done = sent(tmp_path, [packed(model)], "n1")
    assert done.sent == 200_000
    assert contents(tmp_path / "n1/model") == {"a": content}


def test_a_part_outlives_its_porter(tmp_path: Path) -> None:
    """After a cut, a porter that was told of nothing else takes no other part for a stale one."""
    content = b"a" * 10
    sha256 = entry("a", content).sha256
    folder(tmp_path, **{part_name(sha256): content[:4], part_name("0" * 64): b"of another"})
    asked = {"op": "porter", "do": "receive", "folder": str(tmp_path), "name": "a", "bytes": 10, "sha256": sha256}
    shelves = ReceiveFolders()
    assert shelves.take(asked, memoryview(b""), float("inf")) == {"at": 4}
    shelves.close()
    assert len(contents(tmp_path)) == 2


def test_hashes_are_taken_once(tmp_path: Path) -> None:
    """A file that stays as it was isn't read by the next look; one that was put in its place with its times is."""
    content = b"a" * 1000
    model = folder(tmp_path / "model", a=content)
    sent(tmp_path, [packed(model)], "n1")
    (cache,) = (tmp_path / "n1/.cache/aboard/sums").iterdir()
    # The cache is believed while the file is as it was: so it is what a second look goes by.
    cache.write_text(cache.read_text().replace(entry("a", content).sha256, "0" * 64))
    assert sent(tmp_path, [packed(model)], "n1").sent == 1000
    there = tmp_path / "n1/model/a"
    before = there.stat()
    other = there.with_name("b")
    other.write_bytes(b"b" * 1000)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(there)
    assert sent(tmp_path, [packed(model)], "n1").sent == 1000
    assert there.read_bytes() == content


def test_links_are_followed_here_and_never_there(tmp_path: Path) -> None:
    """A model in a hub cache is links to blobs; on a node a link in the place of a file is replaced, not followed."""
    blob = folder(tmp_path / "models--a--b/blobs", x=b"new") / "x"
    model = folder(tmp_path / "model")
    (model / "a").symlink_to(blob)
    victim = folder(tmp_path / "n1", precious=b"old") / "precious"
    folder(tmp_path / "n1/model")
    (tmp_path / "n1/model/a").symlink_to(victim)
    (tmp_path / "n1/model" / part_name(entry("a", b"new").sha256)).symlink_to(victim)
    sent(tmp_path, [packed(model)], "n1")
    assert victim.read_bytes() == b"old"
    assert (tmp_path / "n1/model/a").read_bytes() == b"new"
    assert not (tmp_path / "n1/model/a").is_symlink()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/etc/passwd", "a\0b", "x" * 256, ".aboard-mark-1", 7])
def test_no_name_leads_out(name: object) -> None:
    """Whatever a head says, a file lies beside the others."""
    with pytest.raises(BadName):
        validate_file_name(name)


def test_a_node_refuses_such_names_and_paths(tmp_path: Path) -> None:
    """The node itself judges them: a head's own manifest may come from elsewhere."""
    model = folder(tmp_path / "model", a=b"a")
    out = SyncDirectory(folder=model, files=(FileEntry(name="../a", bytes=1, sha256="0" * 64),), to="~/model")
    with pytest.raises(AgentRequestError, match=r"n1: BadName: '\.\./a' is no plain name"):
        sent(tmp_path, [out], "n1")
    with pytest.raises(AgentRequestError, match="n1: BadName: 'model' is no absolute path"):
        sent(tmp_path, [packed(model, "model")], "n1")


def test_a_source_that_changed_is_named(tmp_path: Path) -> None:
    """The node has what was sent, and that is not what was hashed: the file here is to blame, not the node."""
    model = folder(tmp_path / "model", a=b"a" * 1000)
    wanted = packed(model)
    (model / "a").write_bytes(b"b" * 1000)
    with pytest.raises(AboardError, match=f"{model}/a changed while") as error:
        sent(tmp_path, [wanted], "n1")
    assert error.value.code == "data-changed"
    assert contents(tmp_path / "n1/model") == {}


def test_an_empty_directory_is_none_to_spread(tmp_path: Path) -> None:
    """A hidden file is no model."""
    with pytest.raises(AboardError) as error:
        packed(folder(tmp_path / "model", **{".gitattributes": b""}))
    assert error.value.code == "spread-empty"


def test_one_sender_at_a_time(tmp_path: Path) -> None:
    """Two heads must not write into one file; the second is told, and may go on when the first is gone."""
    content = b"a" * 10
    home = os.open(tmp_path, os.O_RDONLY)
    first = PartialFile(home, "a", 10, entry("a", content).sha256)
    first.write(0, memoryview(content[:4]))
    with pytest.raises(BlockingIOError):
        PartialFile(home, "a", 10, entry("a", content).sha256)
    first.close()
    second = PartialFile(home, "a", 10, entry("a", content).sha256)
    assert second.catch_up(float("inf"))
    assert second.at == 4
    second.write(4, memoryview(content[4:]))
    assert second.publish() == entry("a", content).sha256
    assert contents(tmp_path) == {"a": content}
    os.close(home)


def test_pieces_in_the_wrong_place_are_refused(tmp_path: Path) -> None:
    """A piece that is lost or doubled would leave a hole, or more than the file."""
    home = os.open(tmp_path, os.O_RDONLY)
    stow = PartialFile(home, "a", 10, "0" * 64)
    for at, data in ((1, b"a"), (0, b"a" * 11)):
        with pytest.raises(ValueError, match="came at"):
            stow.write(at, memoryview(data))
    stow.write(0, memoryview(b"a" * 10))
    assert stow.publish() != "0" * 64
    assert contents(tmp_path) == {}
    os.close(home)


def test_a_large_directory_is_hashed_in_parts(tmp_path: Path) -> None:
    """A question is answered when its time is over, with what is done; asked again it goes on from there."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/a").write_bytes(b"a" * 3_000_000)
    shelves = ReceiveFolders()
    asked = {"op": "porter", "do": "sums", "folder": str(tmp_path / "model"), "names": ["a"]}
    # A time that is over: not one block is read.
    assert shelves.take(asked, memoryview(b""), 0.0) == {"sums": {}, "read": 0}
    whole = shelves.take(asked, memoryview(b""), float("inf"))
    assert whole["sums"] == {"a": entry("a", b"a" * 3_000_000).sha256}


def test_tails_are_carried_as_they_are() -> None:
    """Any bytes, behind a message; what is cut short is no frame."""
    tail = bytes(range(256)) * 4
    (body,) = frames.FrameSplitter().feed(frames.pack_tailed({"op": "piece", "at": 7}, tail))
    message, carried = frames.unpack_tailed(body)
    assert (message, bytes(carried)) == ({"op": "piece", "at": 7}, tail)
    with pytest.raises(frames.FrameError):
        frames.unpack_tailed(body[:10])
    with pytest.raises(frames.FrameError):
        frames.pack_tailed({}, bytes(frames.LIMIT))


def test_the_window_follows_the_link() -> None:
    """No more is under way than a second's worth, between two bounds."""
    window = SendWindow()
    assert window.size == FIRST_WINDOW
    for step in range(101):
        window.add_acknowledged(10_000, step / 100)
    assert window.size == LEAST_WINDOW
    for step in range(150):
        window.add_acknowledged(20_000, 1 + step / 100)
    assert abs(window.size - 20_000 * 100 * SPAN_SECONDS) < 50_000
    for step in range(100):
        window.add_acknowledged(MOST_WINDOW, 3 + step / 100)
    assert window.size == MOST_WINDOW


def test_what_a_system_call_says_is_told_by_code() -> None:
    """Each with the node, the path and a line to type."""
    told = {
        code: build_write_error("n1", code, Untrusted("/data/a"), Untrusted("No")).code
        for code in ("ENOSPC", "EDQUOT", "EROFS", "EISDIR", "EIO")
    }
    assert told == {
        "ENOSPC": "spread-disk-full",
        "EDQUOT": "spread-disk-full",
        "EROFS": "spread-denied",
        "EISDIR": "spread-path",
        "EIO": "spread-disk",
    }
    assert (
        build_write_error("n1", "EIO", Untrusted("/data/a"), Untrusted("I/O error")).seen
        == "n1: /data/a can't be written: I/O error"
    )


LIES: list[dict[str, Any]] = [
    {},
    {"fits": ["other"], "parts": {}, "free": 1, "device": 1, "writable": True, "nearest": "/", "extra": []},
    {"fits": [], "parts": {"a": 9}, "free": 1, "device": 1, "writable": True, "nearest": "/", "extra": []},
    {"fits": [], "parts": {}, "free": -1, "device": 1, "writable": True, "nearest": "/", "extra": []},
    {"fits": [], "parts": {}, "free": 1, "device": 1, "writable": True, "nearest": 7, "extra": []},
    {"failed": {"errno": 7}},
    {"failed": "no"},
]


@pytest.mark.parametrize("answer", LIES)
def test_answers_that_make_no_sense_are_refused(answer: dict[str, Any]) -> None:
    """What a node says about files is data of the wrong shape until it is read."""

    async def main() -> None:
        porter = FileSender(await open_link(Node(name="n1"), LyingTransport(answer), SOON, lambda _phase: None))
        try:
            with pytest.raises(ProtocolError, match="n1 sent an invalid reply"):
                await porter.list_folder("/data", [("a", 5, "0" * 64)])
        finally:
            await porter.close()

    asyncio.run(main())


def test_a_disk_that_hangs_is_told_from_a_node_that_does() -> None:
    """The agent answers and its porter doesn't: it is the disk."""

    async def main() -> None:
        porter = FileSender(
            await open_link(Node(name="n1"), LyingTransport(None), SOON, lambda _phase: None), patience=0.3
        )
        try:
            with pytest.raises(AboardError, match=r"n1: /data accepted no data for 0\.3 s, although the node responds"):
                await porter.list_folder("/data", [("a", 5, "0" * 64)])
        finally:
            await porter.close()

    asyncio.run(main())


def test_a_porter_that_is_killed_is_told(tmp_path: Path) -> None:
    """By the kernel, for memory: whoever waits for an answer hears of it at once, and a new one can be had."""

    async def main() -> None:
        fleet = NodeDialer(lambda _node: HomeTransport(tmp_path))
        porter = FileSender((await fleet.dial(Node(name="n1"))).link)
        try:
            await porter.list_folder("~/model", [("a", 5, "0" * 64)])
            (pid,) = process_tree.list_descendants(porter.link.hello["pid"])
            os.kill(pid, signal.SIGSTOP)
            looking = asyncio.create_task(porter.list_folder("~/model", [("a", 5, "0" * 64)]))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(Unreachable, match="n1: the process that copies files there exited"):
                await looking
        finally:
            await porter.close()

    asyncio.run(main())


def test_nothing_is_left_when_it_leaves(tmp_path: Path) -> None:
    """The porter ends, its marks are gone, and the link answers as before."""

    async def main() -> None:
        fleet = NodeDialer(lambda _node: HomeTransport(tmp_path))
        link = (await fleet.dial(Node(name="n1"))).link
        porter = FileSender(link)
        await porter.mark("~/model", "here")
        assert await porter.marks("~/model") == {"here"}
        await porter.leave()
        assert contents(tmp_path / "n1/model") == {}
        assert "wall" in await link.ask("ping", SOON)
        wait_until(lambda: not process_tree.list_descendants(link.hello["pid"]), SOON)
        await link.close()

    asyncio.run(main())


def test_no_mark_of_a_shared_disk_stays(tmp_path: Path) -> None:
    """Several trees may have one directory, each with a mark; those of a killed receiver go with the next sync."""
    old, other = tmp_path / f"{MARK}old", tmp_path / f"{MARK}new"
    for path in (old, other):
        path.touch()
    os.utime(old, (0, 0))
    folders = ReceiveFolders()
    for mark in ("a", "b"):
        folders.take({"op": "files", "do": "mark", "folder": str(tmp_path), "mark": mark}, memoryview(b""), 0.0)
    seen = folders.take({"op": "files", "do": "marks", "folder": str(tmp_path)}, memoryview(b""), 0.0)
    assert set(seen["marks"]) == {"a", "b", "new"}
    folders.close()
    assert [*tmp_path.iterdir()] == [other]
