"""The runner of CI's stages: what it counts, what it runs once more, and when the run has failed."""

import shutil
import sys
from pathlib import Path

import pytest
from stages import MOST_FLAKY, PYTEST, Result, Stage, print_summary, run_stage, write_page

TESTS = Path(__file__).parents[1]
SOURCE = """
from pathlib import Path
import pytest

def test_sound(): pass
def test_broken(): assert "<b>" == "bold"
def test_flaky():
    first = not Path(__file__).with_name("tried").exists()
    Path(__file__).with_name("tried").touch()
    assert not first, "disturbed"
@pytest.mark.skip
def test_skipped(): pass
"""


def stage(folder: Path, *, retry: bool) -> Stage:
    """A stage of four tests, which report as those of this project do."""
    (folder / "test_four.py").write_text(SOURCE)
    shutil.copy(TESTS / "conftest.py", folder)
    argv = (*PYTEST, "-p", "no:cacheprovider", str(folder / "test_four.py"))
    return Stage(name="four", argv=argv, limit=120, retry=retry, env={"PYTHONPATH": str(TESTS / "kit")})


@pytest.mark.ci
def test_a_test_that_passes_alone_is_flaky_and_printed_with_both_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails twice has failed, with what it said both times."""
    monkeypatch.chdir(tmp_path)
    result = run_stage(stage(tmp_path, retry=True))
    assert (result.passed, result.skipped, result.error) == (2, 1, "")
    (flaky,), (failed,) = result.flaky, result.failed
    assert (flaky.rpartition("::")[2], failed.rpartition("::")[2]) == ("test_flaky", "test_broken")
    assert result.failed[failed].count("E   AssertionError") == 2
    assert print_summary([result], 7.0) == 1
    said = capsys.readouterr().out
    assert "disturbed" in said
    assert "passed when run alone" in said
    assert said.endswith("2 passed, 1 failed, 1 flaky, 7 s\n")


@pytest.mark.ci
def test_without_a_second_try_both_have_failed(tmp_path: Path) -> None:
    """Only tests on real hosts get one."""
    result = run_stage(stage(tmp_path, retry=False))
    assert (result.passed, len(result.failed), result.flaky) == (1, 2, {})


def test_more_than_two_flaky_tests_fail_the_run() -> None:
    """Two are let pass, and shown."""
    few = Result(name="ground", passed=5, flaky={str(number): ["", ""] for number in range(MOST_FLAKY)})
    many = Result(name="ground", passed=5, flaky={str(number): ["", ""] for number in range(MOST_FLAKY + 1)})
    assert [print_summary([result], 1.0) for result in (few, many)] == [0, 1]


def test_a_stage_that_hangs_or_breaks_is_told_with_the_reason() -> None:
    """Past its limit it is ended; an exit code without a failed test is a failure, too."""
    hangs = run_stage(Stage(name="hangs", argv=(sys.executable, "-c", "while True: pass"), limit=0.2))
    breaks = run_stage(Stage(name="breaks", argv=(sys.executable, "-c", "raise SystemExit(5)"), limit=60))
    assert (hangs.error, breaks.error) == ("still running after 0 s", "exit code 5")
    assert not hangs.ok
    assert print_summary([hangs, breaks], 1.0) == 1


def test_the_page_shows_what_tests_said_as_text() -> None:
    """Markup in a test's output stays text."""
    page = write_page("abc123", [Result(name="unit", failed={"test_x[<i>]": "assert '<b>'"})])
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.replace("<b class", "")
    assert "<i>" not in page
