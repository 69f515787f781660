"""Attacks on `aboard sync` by a cloned repository: paths and links that lead elsewhere, here and on a node."""

import asyncio
import os
from pathlib import Path, PurePosixPath

import pytest
from deadlines import slowness, within
from node_homes import HomeTransport, run_sync

from aboard.commands.sync.trees.collect_paths import collect_from_nodes
from aboard.commands.sync.trees.source_tree import scan_code, scan_data
from aboard.commands.sync.trees.sync_sources import load_training_files, scan_sources
from aboard.commands.sync.trees.tree_difference import SMALL_BYTES
from aboard.commands.train.input_directory import build_sync_directory
from aboard.core.cluster.file_sync import CollectedPath
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError
from aboard.sandbox import Sandbox
from aboard.transport.node_dialer import NodeDialer


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in the user's home; nodes n1 and n2 have homes beside it."""
    folder = tmp_path / "head/repository"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "head"))
    monkeypatch.chdir(folder)
    return folder


def put(path: Path, content: bytes = b"evil") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/cwd/.ssh/rc",
        "/proc/self/cwd/results",
        "d/rc",
        "deeper/rc",
        "//proc/self/cwd/.ssh",
        "/dev/fd",
        "/sys",
    ],
)
def test_a_path_through_proc_dev_or_sys_is_not_sent(repository: Path, path: str) -> None:
    """`/proc/self/cwd` is the repository here and the home on a node: nothing may lead through it."""
    put(repository / ".ssh/rc")
    put(repository / "results/mine")
    (repository / "d").symlink_to("/proc/self/cwd/.ssh")
    (repository / "e").symlink_to("d")
    (repository / "deeper").symlink_to("results/../e")
    (repository / "aboard.yaml").write_text(f"data: {{files: [{path}]}}\n")
    for typed in ((), (Path(path),)):
        with pytest.raises(AboardError) as error:
            scan_sources((), typed, load_training_files(["aboard.yaml"], ()))
        assert error.value.code == "sync-system-path", error.value.seen


def test_a_node_follows_no_link_to_the_root_of_a_transfer(repository: Path, tmp_path: Path) -> None:
    """A link in the node's home, or to it, is named and nothing is written through it; nor is anything in /proc."""
    put(repository / "f")
    (tmp_path / "n1/keys").mkdir(parents=True)
    (tmp_path / "n1/d").symlink_to("keys")
    (tmp_path / "way").symlink_to(tmp_path / "n1")
    roots = {
        "~/d": "spread-link",
        "~/d/new": "spread-link",
        str(tmp_path / "way/new"): "spread-link",
        "/proc/self/cwd/new": "spread-denied",
    }
    for root, code in roots.items():
        for tree in (scan_code(repository, root), scan_data(repository, root)):
            (result,) = run_sync(tmp_path, [tree], "n1").values()
            assert result.error is not None
            assert result.error.code == code, result.error.seen
            assert root != "~/d" or result.error.seen.endswith("n1/d can't be written: it is a symbolic link to keys")
    assert not [*(tmp_path / "n1/keys").iterdir(), *tmp_path.glob("n1/new"), *repository.glob("new")]


def test_a_link_that_a_sync_brought_is_no_directory_for_the_next_one(repository: Path, tmp_path: Path) -> None:
    """The repository's next version has a directory in the place of the link, and names it as data."""
    keys = put(tmp_path / "n1/.ssh/authorized_keys", b"mine").parent
    (repository / "d").symlink_to("../.ssh")
    assert run_sync(tmp_path, scan_sources((), (), load_training_files([], ())), "n1")["n1"].error is None
    assert (tmp_path / "n1/repository/d").is_symlink()
    (repository / "d").unlink()
    put(repository / "d/authorized_keys")
    put(repository / "d/rc")
    (repository / "aboard.yaml").write_text("data: {files: [d]}\n")
    error = run_sync(tmp_path, scan_sources((), (), load_training_files(["aboard.yaml"], ())), "n1")["n1"].error
    assert error is not None
    assert error.code == "spread-link"
    assert [(path.name, path.read_bytes()) for path in keys.iterdir()] == [("authorized_keys", b"mine")]


def test_delete_spares_a_directory_that_no_sync_made(repository: Path, tmp_path: Path) -> None:
    """Neither an aboard.yaml nor an earlier sync into it lets --delete into a user's directory; a typed path does."""
    mine = put(tmp_path / "n1/repository/results/mine", b"precious")
    put(repository / "results/theirs")
    (repository / "aboard.yaml").write_text("data: {files: [results]}\n")

    def sync(*typed: Path, delete: bool, dry: bool = False) -> str:
        trees = scan_sources((), typed, load_training_files(["aboard.yaml"], ()))
        (result,) = run_sync(tmp_path, trees, "n1", delete=delete, dry=dry).values()
        return result.error.code if result.error else f"deleted {result.deleted}"

    assert sync(delete=True) == "spread-foreign-files"
    assert sync(delete=False) == "deleted 0"
    assert sync(delete=True, dry=True) == sync(delete=True) == "spread-foreign-files"
    assert mine.exists()
    assert sync(repository / "results", delete=True) == "deleted 1"
    assert not mine.exists()
    put(tmp_path / "n1/repository/results/later")
    assert sync(delete=True) == "deleted 1"
    mine.parent.rename(mine.parent.with_name("old"))
    put(mine)
    assert sync(delete=True) == "spread-foreign-files"


def collect(homes: Path) -> list[str]:
    """`aboard sync --back ~/output` from n1: its errors, all of which are about the target."""

    async def main() -> list[CollectedPath]:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        try:
            return await collect_from_nodes([Node(name="n1")], [PurePosixPath("~/output")], Path("back"), dialer)
        finally:
            await dialer.close()

    errors = [each.error for each in asyncio.run(main()) if each.error is not None]
    assert {error.code for error in errors} <= {"fetch-target"}
    return [error.seen for error in errors]


@pytest.mark.parametrize("way", ["data/key", "data/d/key", "data/through"])
def test_no_file_outside_of_a_tree_is_sent_through_a_link(repository: Path, tmp_path: Path, way: str) -> None:
    """A link in code stays a link; one in a data or model directory that leads out is refused by name."""
    key = put(tmp_path / "head/secret", b"private key")
    put(repository / "data/config.json", b"{}")
    (repository / way).parent.mkdir(exist_ok=True)
    (repository / way).symlink_to(key)
    if way == "data/through":
        (repository / "blobs").symlink_to(key.parent)
        (repository / way).unlink()
        (repository / way).symlink_to("../blobs/secret")
    (code,) = scan_sources((), (), load_training_files([], ()))
    assert way in code.links
    assert way not in code.files
    (repository / "aboard.yaml").write_text("data: {files: [data]}\n")
    for typed in ((), (Path("data"),)):
        with pytest.raises(AboardError) as error:
            scan_sources((), typed, load_training_files(["aboard.yaml"], ()))
        assert error.value.code == "spread-link-out"
    if "/d/" not in way:
        with pytest.raises(AboardError, match="which is outside of"):
            build_sync_directory(repository / "data", hashes=tmp_path / "hashes.json")
    tree, _named = scan_sources((), (Path("data"), key), load_training_files([], ()))
    assert way.removeprefix("data/") in tree.files


def test_links_of_caches_and_annexes_are_sent_as_files(repository: Path, tmp_path: Path) -> None:
    """A snapshot of a Hugging Face cache, a model directory with links to one, and links inside of the project."""
    blob = put(tmp_path / "head/.cache/huggingface/hub/models--a--b/blobs/0123")
    snapshot = blob.parents[1] / "snapshots/main"
    annexed = put(repository / ".git/annex/objects/x")
    for folder, target in ((snapshot, blob), (repository / "model", blob), (repository / "data", annexed)):
        folder.mkdir(parents=True)
        (folder / "config.json").symlink_to(target)
        (tree,) = scan_sources((), (folder,), load_training_files([], ()))
        assert set(tree.files) == {"config.json"}
        assert build_sync_directory(folder, hashes=tmp_path / "hashes.json").files[0].bytes == 4


def test_setuid_bits_gaps_pipes_and_hard_links_do_not_travel(repository: Path, tmp_path: Path) -> None:
    """Permissions lose setuid bits, pipes are left out, and a file with a second name on the node keeps its content."""
    put(repository / "run").chmod(0o6755)
    os.mkfifo(repository / "pipe")
    precious = put(tmp_path / "n1/precious", b"mine")
    put(tmp_path / "n1/tree/other")
    for name in ("run", "large"):
        (tmp_path / "n1/tree" / name).hardlink_to(precious)
    put(repository / "large", bytes(SMALL_BYTES + 1))
    for tree in (scan_code(repository, "~/tree"), scan_data(repository, "~/tree")):
        assert tree.special == 1
        assert run_sync(tmp_path, [tree], "n1")["n1"].error is None
    assert (tmp_path / "n1/tree/run").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "n1/tree/run").read_bytes() == b"evil"
    assert (precious.read_bytes(), precious.stat().st_nlink) == (b"mine", 1)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_file_of_gaps_that_is_larger_than_the_disk_is_refused_at_once(
    repository: Path, tmp_path: Path, way: str
) -> None:
    """Neither side hashes it first, which would take hours."""
    for folder in (repository, tmp_path / "n1/output"):
        os.truncate(put(folder / "sparse"), 2**43)
    with within(20):
        if way == "back":
            assert "is needed in back/n1/output" in collect(tmp_path)[0]
        else:
            error = run_sync(tmp_path, [scan_data(repository, "~/tree")], "n1")["n1"].error
            assert error is not None
            assert error.code == "spread-disk-full"


@pytest.mark.ground
def test_a_sync_to_real_hosts_puts_nothing_into_ssh(box: Sandbox) -> None:
    """A login on a node runs no file of a repository: neither its aboard.yaml nor a link on the node leads there."""
    n1 = box.host("n1")
    files = "echo 'touch ~/MARK' | tee .ssh/rc d/rc && ln -s /proc/self/cwd/.ssh e"
    box.head.run(["sh", "-c", f"mkdir -p repo/.ssh repo/d && cd repo && {files}"]).check_returncode()
    n1.run(["sh", "-c", "mkdir -p repo && ln -s ../.ssh repo/d"]).check_returncode()
    commands = {
        "rm -f aboard.yaml; aboard sync --on n1 --data d": "spread-link",
        "rm -f aboard.yaml; aboard sync --on n1 --data e": "sync-system-path",
    }
    for path in ("/proc/self/cwd/.ssh/rc", "e", "e/rc"):
        text = f"cluster: {{nodes: [n1]}}\ndata: {{files: [{path}]}}\n"
        commands[f"printf '{text}' > aboard.yaml; aboard sync --allow-file"] = "sync-system-path"
    try:
        for command, code in commands.items():
            ran = box.head.run(["sh", "-c", f"cd repo; {command}"], timeout=60 * slowness())
            assert f"[{code}]" in ran.stdout + ran.stderr, ran.stdout + ran.stderr
        assert box.head.run(["ssh", "n1", "ls -A . .ssh"]).returncode == 0
        assert n1.run(["sh", "-c", "ls -A . .ssh | grep -xE 'rc|MARK'"]).stdout.splitlines() == [], "a file was written"
    finally:
        for host in (box.head, n1):
            host.run(["sh", "-c", "rm -rf repo MARK .ssh/rc"])
