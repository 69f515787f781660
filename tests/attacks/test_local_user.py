"""Attacks by another user of a node or of the head, without any right of ours."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_users import ATTACKER, VICTIM, run_as

from aboard.agent.transfer.partial_file import part_name
from aboard.flows.sync.download_target import DownloadTarget, WantedFile
from aboard.sandbox import Sandbox


def test_users_are_other_uids() -> None:
    """The actors of this file are neither root nor each other."""
    uids = [int(run_as(uid, "import os; print(os.getuid())")) for uid in (VICTIM, ATTACKER)]
    assert uids == [VICTIM, ATTACKER]


@pytest.fixture
def private_home() -> Iterator[Path]:
    """A directory that only root can enter, with a Python environment and a file whose own mode protects nothing."""
    # A host has a /tmp of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        (home / "env/bin").mkdir(parents=True)
        (home / "env/bin/python").symlink_to("/usr/bin/python3")
        (home / "token").write_text("hf_secret")
        yield home


@pytest.mark.ground
def test_a_sandbox_shows_no_file_beside_an_environment_in_a_private_home(
    private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts' user runs an environment in root's home, and neither lists nor reads what is beside it."""
    monkeypatch.setenv("VIRTUAL_ENV", str(private_home / "env"))
    with Sandbox.up(f"test-{os.getpid()}-home", nodes=1, temporary=True) as box:
        for host in box.hosts.values():
            python = f"{private_home}/env/bin/python"
            assert host.run([python, "-c", "print(1)"]).stdout == "1\n"
            read = host.run(["cat", f"{private_home}/token"])
            assert (read.stdout, read.returncode) == ("", 1)
            assert host.run(["ls", str(private_home)]).returncode != 0
    assert private_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["hard link", "file of the attacker"])
def test_a_planted_part_of_a_file_is_not_continued(tmp_path: Path, planted: str) -> None:
    """In a directory that others can write to, a transfer neither writes to a file of ours nor publishes theirs."""
    shared, notes, content = tmp_path / "shared", tmp_path / "notes", b"weights"
    shared.mkdir()
    shared.chmod(0o777)
    notes.write_bytes(b"mine")
    sha256 = hashlib.sha256(content).hexdigest()
    if planted == "hard link":
        # As the attacker can where fs.protected_hardlinks is 0.
        os.link(notes, shared / part_name(sha256))
    else:
        (shared / part_name(sha256)).write_bytes(b"")
        os.chown(shared / part_name(sha256), ATTACKER, ATTACKER)
    with DownloadTarget(shared) as target:
        incoming = target.receive(WantedFile(name="model", bytes=len(content), sha256=sha256))
        incoming.write(incoming.start, memoryview(content)[incoming.start :])
        assert incoming.publish() == sha256
    assert (shared / "model").read_bytes() == content
    assert (shared / "model").stat().st_uid == os.getuid()
    assert notes.read_bytes() == b"mine"
