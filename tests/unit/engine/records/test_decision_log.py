"""decisions.log: what the conductor decided, in a bounded file without secrets."""

import logging
import stat
from pathlib import Path

import pytest

from aboard.engine.records import decision_log
from aboard.engine.records.decision_log import show_decisions, write_decisions
from aboard.record.run_directory import RunDirectory

LOG = logging.getLogger("aboard.engine.example")


def test_decisions_are_written_with_time_and_module(tmp_path: Path) -> None:
    """One line each while the block lasts, readable by their owner only."""
    run = RunDirectory(tmp_path)
    with write_decisions(run):
        LOG.info("%s was lost: %s", "n3", "no answer for 20 s")
    LOG.info("after the run")
    (line,) = run.decisions.read_text().splitlines()
    assert line.endswith("aboard.engine.example: n3 was lost: no answer for 20 s")
    assert stat.S_IMODE(run.decisions.stat().st_mode) == 0o600


def test_secrets_and_control_characters_stay_out_of_the_log(tmp_path: Path) -> None:
    """What a node said may contain anything."""
    run = RunDirectory(tmp_path)
    with write_decisions(run):
        LOG.info("n1: %s", "\x1b[2Jtoken hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567\nsecond line")
    text = run.decisions.read_text()
    assert "\x1b" not in text
    assert "hf_aBc" not in text
    assert text.count("\n") == 1


def test_the_last_decisions_are_kept_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two files, of which the older one is replaced."""
    monkeypatch.setattr(decision_log, "MOST_BYTES", 1000)
    run = RunDirectory(tmp_path)
    with write_decisions(run):
        for number in range(100):
            LOG.info("decision %d", number)
    assert run.decisions.read_text().endswith("decision 99\n")
    assert run.decisions.stat().st_size + run.earlier_decisions.stat().st_size <= 2000


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """The directory of the run may be gone, or its disk full."""
    with write_decisions(RunDirectory(tmp_path / "gone")):
        LOG.info("nobody reads this")
    run = RunDirectory(tmp_path)
    run.decisions.symlink_to("/dev/full")
    with write_decisions(run):
        LOG.info("nobody reads this either")


def test_debug_shows_decisions_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Also for commands without a run."""
    logger = logging.getLogger("aboard")
    before = list(logger.handlers)
    show_decisions()
    try:
        LOG.debug("link to %s open", "n1")
    finally:
        logger.handlers = before
    assert "link to n1 open" in capsys.readouterr().err
