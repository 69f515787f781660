"""Downloads from agents on this machine, each with a home of its own: verified, resumable, and nothing outside."""

import asyncio
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from node_homes import HomeTransport, LyingTransport

from aboard.agent import process_tree
from aboard.agent.transfer.partial_file import part_name
from aboard.commands.sync.download import DownloadProgress, DownloadResult, NodeDownload, download_tree
from aboard.commands.sync.download_target import DownloadTarget, WantedFile, is_link_inside
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, ProtocolError
from aboard.diagnoses.files import file_fetch
from aboard.diagnoses.untrusted import Untrusted
from aboard.transport.agent_link import open_link
from aboard.transport.files.file_fetcher import FileFetcher, parse_relative_name
from aboard.transport.node_dialer import NodeDialer

SOON = 5.0


def download(homes: Path, path: str, target: Path, heard: list[DownloadProgress] | None = None) -> DownloadResult:
    async def main() -> DownloadResult:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        try:
            return await download_tree(Node(name="n1"), path, target, dialer, ([] if heard is None else heard).append)
        finally:
            await dialer.close()

    return asyncio.run(main())


def want(name: str, content: bytes) -> WantedFile:
    return WantedFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def fetch(homes: Path, root: str, files: list[WantedFile], target: Path) -> dict[str, AboardError]:
    async def main() -> dict[str, AboardError]:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        node_download = NodeDownload(Node(name="n1"), dialer)
        try:
            return await node_download.fetch(root, files, target)
        finally:
            await node_download.close()
            await dialer.close()

    return asyncio.run(main())


def test_a_tree_arrives_as_it_was(tmp_path: Path) -> None:
    """Files of any name and size, empty directories, modes, times and links arrive; a second time nothing is sent."""
    there = tmp_path / "n1/out"
    (there / "deep/er").mkdir(parents=True)
    (there / "empty").mkdir()
    big = os.urandom(3_000_000)
    names = {"a": b"a", "none": b"", "deep/er/big": big, "deep/$(x) ;\n'\"": b"odd", "deep/caf\udce9": b"latin"}
    for name, content in names.items():
        (there / name).write_bytes(content)
    (there / "a").chmod(0o750)
    os.utime(there / "a", ns=(10**18, 10**18))
    (there / "link").symlink_to("deep/er/big")
    (there / "deep/up").symlink_to("../a")
    (there / "out").symlink_to("../secret")
    (there / "root").symlink_to("/etc/passwd")
    os.mkfifo(there / "pipe")
    (there / part_name("0" * 64)).write_bytes(b"ours")
    heard: list[DownloadProgress] = []
    done = download(tmp_path, "~/out", tmp_path / "back", heard)
    here = tmp_path / "back"
    assert {name: (here / name).read_bytes() for name in names} == names
    assert ((here / "a").stat().st_mode & 0o777, (here / "a").stat().st_mtime_ns) == (0o750, 10**18)
    assert (here / "empty").is_dir()
    assert {name: str((here / name).readlink()) for name in ("link", "deep/up")} == {
        "link": "deep/er/big",
        "deep/up": "../a",
    }
    assert done.skipped == ("out", "pipe", "root")
    assert sorted(path.name for path in here.iterdir()) == ["a", "deep", "empty", "link", "none"]
    total = sum(map(len, names.values()))
    assert (done.files, done.bytes, done.received) == (len(names), total, total)
    assert (heard[-1].phase, heard[-1].done, heard[-1].total) == ("done", total, total)
    assert download(tmp_path, "~/out", here).received == 0


def test_one_file_comes_alone(tmp_path: Path) -> None:
    """A path may be a file; only it is copied."""
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/log").write_bytes(b"lines")
    (tmp_path / "n1/other").write_bytes(b"other")
    download(tmp_path, "~/log", tmp_path / "back")
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == {"log": b"lines"}


def test_a_part_resumes_and_a_damaged_one_starts_over(tmp_path: Path) -> None:
    """What is here isn't sent again, unless the result shows that it was wrong."""
    content = os.urandom(900_000)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/a").write_bytes(content)
    file = want("a", content)
    for kind, begun in {"true": content[:500_000], "damaged": b"x" * 500_000}.items():
        target = tmp_path / f"back-{kind}"
        target.mkdir()
        (target / part_name(file.sha256)).write_bytes(begun)
        assert fetch(tmp_path, "~", [file], target) == {}
        assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a": content}
        assert (target / "a").stat().st_mode & 0o777 == 0o600


def test_a_lost_reader_is_replaced(tmp_path: Path) -> None:
    """The transfer reconnects after its process on the node dies, and continues where it was."""
    content = os.urandom(8_000_000)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/a").write_bytes(content)

    async def main() -> int:
        dialer = NodeDialer(lambda _node: HomeTransport(tmp_path))
        killed: list[int] = []

        def kill_reader(progress: DownloadProgress) -> None:
            if progress.done > 1_000_000 and not killed:
                killed.extend(filter(_is_agent_child, process_tree.list_descendants(os.getpid())))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

        node_download = NodeDownload(Node(name="n1"), dialer, kill_reader)
        try:
            assert await node_download.fetch("~", [want("a", content)], tmp_path / "back") == {}
        finally:
            await node_download.close()
            await dialer.close()
        assert len(killed) == 1
        return node_download.received

    assert len(content) <= asyncio.run(main()) < 2 * len(content)
    assert (tmp_path / "back/a").read_bytes() == content


def _is_agent_child(pid: int) -> bool:
    """Whether an agent forked this process: its parent is no process of ours but that agent."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent != os.getpid()


def test_single_files_fail_alone(tmp_path: Path) -> None:
    """A file that is missing or damaged there is named, and the others arrive; no half file gets its name."""
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/good").write_bytes(b"good")
    (tmp_path / "n1/bad").write_bytes(b"evil")
    (tmp_path / "n1/short").write_bytes(b"sho")
    files = [want("bad", b"fine"), want("gone", b"gone"), want("short", b"short"), want("good", b"good")]
    failed = fetch(tmp_path, "~", files, tmp_path / "back")
    assert {name: error.diagnosis for name, error in failed.items()} == {
        "bad": file_fetch.CHANGED,
        "gone": file_fetch.MISSING,
        "short": file_fetch.CHANGED,
    }
    assert f"n1: ~/bad has sha256 {want('', b'evil').sha256}, expected" in failed["bad"].seen
    complete = [path.name for path in (tmp_path / "back").iterdir() if not path.name.startswith(".")]
    assert complete == ["good"]


HOSTILE_NAMES = ["", ".", "..", "../x", "a/../../x", "/etc/x", "a//b", "a/", "a\0b", "x" * 256, "a/" * 3000 + "a"]


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, ".aboard-x", "\ud800"])
def test_no_listed_name_leads_out(name: str) -> None:
    """A name from a node has plain parts only, or the whole listing is refused."""
    assert parse_relative_name(Untrusted(name)) is None


def row(name: str, kind: str = "file", target: str = "") -> list[object]:
    return [name, kind, 1, 0o644, 0, target]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"entries": [row("../x")], "single": False, "done": True}, AboardError),
        ({"entries": [row("a"), row("a")], "single": False, "done": True}, AboardError),
        ({"entries": [], "single": False, "done": False}, ProtocolError),
        ({"entries": [row("a", "device")], "single": False, "done": True}, ProtocolError),
        ({"entries": [["a", "file", -1, 0, 0, ""]], "single": False, "done": True}, ProtocolError),
        ({"entries": "all"}, ProtocolError),
        ({}, ProtocolError),
    ],
)
def test_a_hostile_listing_is_refused(answer: dict[str, Any], error: type[AboardError]) -> None:
    """Names that lead out, come twice, or make no sense stop the download before anything is written."""

    async def main() -> None:
        fetcher = FileFetcher(await open_link(Node(name="n1"), LyingTransport(answer), SOON, lambda _phase: None))
        try:
            with pytest.raises(error, match="n1"):
                await fetcher.list_tree("/data")
        finally:
            await fetcher.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "to", "inside"),
    [
        ("a", "b", True),
        ("d/a", "../b", True),
        ("d/a", "../../b", False),
        ("a", "../b", False),
        ("a", "d/../../b", False),
        ("a", "d/link/..", False),
        ("a", "/etc", False),
        ("a", "", False),
    ],
)
def test_links_stay_inside(name: str, to: str, inside: bool) -> None:  # noqa: FBT001 - a parameter
    """`..` behind another name could start anywhere, since that may be a link."""
    assert is_link_inside(name, to) is inside


def test_no_link_here_is_followed(tmp_path: Path) -> None:
    """A link in the target directory is in the way, wherever it leads: nothing is written behind it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    back = tmp_path / "back"
    back.mkdir()
    (back / "d").symlink_to(outside)
    (back / "f").symlink_to(outside / "f")
    (tmp_path / "n1/d").mkdir(parents=True)
    (tmp_path / "n1/d/x").write_bytes(b"x")
    (tmp_path / "n1/f").write_bytes(b"f")
    with pytest.raises(AboardError, match="can't be written") as caught:
        fetch(tmp_path, "~", [want("d/x", b"x")], back)
    assert caught.value.diagnosis is file_fetch.TARGET
    assert fetch(tmp_path, "~", [want("f", b"f")], back) == {}
    assert not (back / "f").is_symlink()
    assert list(outside.iterdir()) == []


def test_a_full_disk_is_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for all files, none is fetched."""
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/a").write_bytes(b"a")
    monkeypatch.setattr(DownloadTarget, "count_free_bytes", lambda _self: 1000)
    with pytest.raises(AboardError, match=r"64 MiB is needed in .*, but only 1000 B is free"):
        fetch(tmp_path, "~", [want("a", b"a")], tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []
