"""Attacks by what a cloned directory has in place of the files that a training writes."""

import os
import resource
import subprocess
from pathlib import Path

import pytest
from deadlines import within

from aboard.core.plan.training_settings import Training
from aboard.core.probes.probe import ProbeCommand
from aboard.diagnoses import AboardError
from aboard.durable_files import hold_lock, write_atomically
from aboard.trainer.checkpoint.checkpoint_folder import FolderLock
from aboard.trainer.checks.resumable_checkpoints import build_checkpoints_probe
from aboard.trainer.metrics.metrics_report import MetricsReporter

PRECIOUS = "export PATH\n"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output directory in a repository, and a file of the user's home beside it."""
    (tmp_path / "bashrc").write_text(PRECIOUS)
    folder = tmp_path / "repository" / "output"
    folder.mkdir(parents=True)
    return folder


def _begin(folder: Path) -> None:
    training = Training(model="m", data=(), output_dir=str(folder), max_length=8)
    with MetricsReporter(training, main=True) as report:
        report.begin(0)


def test_a_lock_that_is_a_link_empties_no_file_of_the_user(output: Path, tmp_path: Path) -> None:
    """Neither the lock of the checkpoints nor one of the data or a tracker follows a link."""
    (output / ".lock").symlink_to("../../bashrc")
    with pytest.raises(OSError, match="it is a link"):
        FolderLock(output)
    with pytest.raises(OSError, match="it is a link"), hold_lock(output / ".lock", patience=0):
        pass
    assert (tmp_path / "bashrc").read_text() == PRECIOUS


@pytest.mark.parametrize("target", ["../../bashrc", "../../new", "/dev/zero"])
def test_metrics_are_not_written_or_read_through_a_link(output: Path, tmp_path: Path, target: str) -> None:
    """The run is refused by name before anything is read from the link's target, made there or appended."""
    (output / "metrics.jsonl").symlink_to(target)
    with within(5), pytest.raises(AboardError) as refused:
        _begin(output)
    assert refused.value.code == "checkpoint-write"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bashrc", "repository"]
    assert [path.name for path in output.iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "bashrc").read_text() == PRECIOUS


def test_the_state_of_trackers_is_not_written_through_a_link(output: Path, tmp_path: Path) -> None:
    """A link in place of the trackers' directory is refused, and a planted draft of a file is not followed."""
    (output / "trackers").symlink_to("../..")
    with pytest.raises(AboardError, match="trackers is a link"):
        _begin(output)
    (output / f".run.json.{os.getpid()}").symlink_to("../../bashrc")
    with pytest.raises(OSError, match="it is a link"):
        write_atomically(output / "run.json", "{}", sync=False)
    assert (tmp_path / "bashrc").read_text() == PRECIOUS


def test_a_manifest_that_leads_to_a_device_is_not_read(output: Path) -> None:
    """The probe of the nodes skips a checkpoint whose manifest is no regular file."""
    saved = output / "step-000001"
    saved.mkdir()
    (saved / "manifest.json").symlink_to("/dev/zero")
    question = build_checkpoints_probe(str(output)).question
    assert isinstance(question, ProbeCommand)
    assert _run_bounded(question.argv) == b""


def _run_bounded(argv: tuple[str, ...]) -> bytes:
    """What a command prints with little memory: what reads a device without end fails, and hurts nobody."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))

    done = subprocess.run(argv, capture_output=True, preexec_fn=limit, timeout=20, check=False)
    assert not done.stderr
    return done.stdout
