"""Attacks by a local user on the directories in which Aboard keeps records, caches and prepared data."""

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from other_users import ATTACKER, run_as
from preparing import SHARD, Bytes, source, write_rows

from aboard.agent.transfer.root_folder import open_folder
from aboard.config.allowed_files import record_allowed
from aboard.config.this_machine import record_environment_place
from aboard.record.runs import Runs
from aboard.record.trust_record import TrustRecords
from aboard.trainer.data.tokenize_workers.prepare_data import prepare_data

# Prints what this user can read or change below a directory.
PRY = """
import os, sys
for folder, names, files in os.walk(sys.argv[1]):
    if os.access(folder, os.W_OK):
        print("writes to", folder)
    for name in files:
        if os.access(os.path.join(folder, name), os.R_OK):
            print("reads", name)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that others may enter, as on many clusters; a umask that keeps nobody out."""
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory() as made:
            Path(made).chmod(0o755)
            yield Path(made)
    finally:
        os.umask(before)


def test_others_can_write_to_no_record_whatever_the_umask(home: Path) -> None:
    """Records name programs that run with the user's rights; directories above them are made private, too."""
    environ = {"HOME": str(home)}
    (home / "aboard.yaml").touch(mode=0o600)
    Runs.of(environ).create(datetime.now(UTC), Random(1))  # noqa: S311 - a name
    record_allowed(str(home / "aboard.yaml"), "0" * 64, environ)
    record_environment_place(Path("/venv"), "/elsewhere", environ)
    with TrustRecords.of(environ).lock():
        assert run_as(ATTACKER, PRY, str(home)) == ""


def test_a_directory_of_records_that_others_could_write_to_is_closed(home: Path) -> None:
    """One that an earlier umask left open is closed before it is used again."""
    (home / ".local/state/aboard").mkdir(parents=True)
    Runs.of({"HOME": str(home)}).create(datetime.now(UTC), Random(1))  # noqa: S311 - a name
    assert (home / ".local/state/aboard").stat().st_mode & 0o777 == 0o755


def test_prepared_data_is_readable_by_the_user_alone(home: Path) -> None:
    """The tokens of a private file are as private as the file, on the head; nodes get the mode of the shards."""
    rows = write_rows(home / "rows.jsonl", 20)
    rows.chmod(0o600)
    prepared = prepare_data(
        [source(rows)], Bytes(), home / ".cache/aboard/data", max_length=100, workers=1, shard_bytes=SHARD
    )
    assert run_as(ATTACKER, PRY, str(home)) == ""
    assert prepared.shards.folder.stat().st_mode & 0o777 == 0o700


def test_a_node_makes_hidden_directories_of_a_transfer_private(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """~/.cache and ~/.local on a node that has none yet."""
    monkeypatch.setenv("HOME", str(home))
    os.close(open_folder(str(home / ".cache/aboard/data/shards"), make=True))
    assert (home / ".cache").stat().st_mode & 0o777 == 0o700
