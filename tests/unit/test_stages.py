"""The runner of CI's stages: what it counts, what it runs once more, and when the run has failed."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from cpu_group import find_own_group, open_cpu_group, parse_usage
from durations import order_longest_first
from stages import (
    CPU_BUDGETS,
    MOST_FLAKY,
    PYTEST,
    Result,
    Stage,
    judge_cpu_seconds,
    list_ci_stages,
    print_summary,
    run_stage,
    run_stages,
    save_durations,
    write_page,
)

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

# A daemon: no one waits for it, so that no parent's resource usage has its seconds.
DAEMON = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while time.process_time() < 0.5: pass
        os.write(write, b"x")
    os._exit(0)
os.wait()
os.read(read, 1)
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
    assert [module.rpartition("/")[2] for module in result.durations] == ["test_four.py"]
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


def test_the_budgets_fit_into_half_an_hour_of_two_cores() -> None:
    """Each stage has one; together they have the CPU seconds of two cores in half an hour."""
    assert [stage.name for stage in list_ci_stages()] == [*CPU_BUDGETS]
    assert sum(CPU_BUDGETS.values()) <= 3600


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


def test_a_stage_fails_above_one_and_a_half_times_its_budget() -> None:
    """The message names stage, figure and budget; what was not measured fails nothing."""
    within = [judge_cpu_seconds("train", seconds, 200.0) for seconds in (None, 7.0, 300.0)]
    assert [*within, judge_cpu_seconds("train", 900.0, None)] == [""] * 4
    error = judge_cpu_seconds("train", 312.4, 200.0)
    assert error.startswith("train took 312 CPU seconds, more than 1.5 × its budget of 200:")


def test_the_summary_has_cpu_seconds_beside_each_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that could not be measured says so, here and on the page."""
    results = [
        Result(name="train", seconds=90.2, cpu_seconds=171.6, budget=200.0),
        Result(name="soak", seconds=12.0, budget=30.0),
    ]
    assert print_summary(results, 102.0) == 0
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split() for line in table[-2:]] == [
        ["90", "s", "172", "s", "200", "s", "train"],
        ["12", "s", "not", "measured", "30", "s", "soak"],
    ]
    page = write_page("abc123", results)
    assert "<td>172 s" in page
    assert "<td>not measured" in page


@pytest.mark.ci
def test_daemons_of_a_stage_are_counted() -> None:
    """The stage's group is gone afterwards, and a stage that takes too much does not stop those after it."""
    with open_cpu_group("test: daemon") as group:
        if group is None:
            pytest.skip("no control group can be made here")
        daemon = Stage(name="daemon", argv=(sys.executable, "-Sc", DAEMON), limit=120, budget=0.1, essential=True)
        result, after = run_stages([daemon, Stage(name="after", argv=("true",), limit=60)])
    assert not group.folder.exists()
    assert result.cpu_seconds is not None
    assert result.cpu_seconds >= 0.5
    assert result.error.startswith("daemon took")
    assert after.ok
    assert not [path for path in group.folder.parent.iterdir() if path.name.endswith("-daemon")]


@pytest.mark.parametrize(
    ("groups", "made", "expected"),
    [
        ("2:cpuacct:/\n0::/\n", "cpuacct/cpuacct.usage", "cpuacct"),
        ("3:cpu,cpuacct:/user\n", "cpuacct/user/cpuacct.usage", "cpuacct/user"),
        ("3:cpu,cpuacct:/docker/1f\n", "cpuacct/cpuacct.usage", "cpuacct"),
        ("0::/a.scope\n", "a.scope/cgroup.controllers", "a.scope"),
        ("5:memory:/x\n", "memory/x/cgroup.procs", None),
    ],
    ids=["version 1", "version 1, two at once", "container", "version 2", "none"],
)
def test_cpu_seconds_are_counted_below_our_own_group(
    groups: str, made: str, expected: str | None, tmp_path: Path
) -> None:
    """Version 1 first: where both are mounted, version 2 may have no group of ours."""
    (tmp_path / made).parent.mkdir(parents=True)
    (tmp_path / made).touch()
    assert find_own_group(groups, tmp_path) == (None if expected is None else tmp_path / expected)


def test_cpu_seconds_of_both_versions_are_read() -> None:
    """A group that nobody entered has measured nothing."""
    usage = ("2500000000\n", "usage_usec 2500000\nuser_usec 7\n", "0\n", "usage_usec 0\n", "nonsense")
    assert list(map(parse_usage, usage)) == [2.5, 2.5, None, None, None]


def test_the_longest_group_comes_first() -> None:
    """Tests of a group stay in their order; a module without a figure counts as average."""
    tests = [("new", "one"), ("short", "two"), ("long", "three"), ("short", "four"), ("medium", "four")]
    durations = {"long": 30.0, "medium": 5.0, "short": 1.0}
    assert order_longest_first(tests, durations) == [2, 3, 4, 0, 1]
    assert order_longest_first(tests, {}) == [0, 1, 2, 3, 4]


def test_saved_durations_keep_what_was_not_measured(tmp_path: Path) -> None:
    """Unit tests are not ordered; modules that are gone go."""
    (tmp_path / "tests/ground").mkdir(parents=True)
    for name in ("old", "new"):
        (tmp_path / f"tests/ground/{name}.py").touch()
    path = tmp_path / "tests/durations.json"
    path.write_text(json.dumps({"tests/ground/old.py": 3.0, "tests/ground/gone.py": 4.0}))
    save_durations([Result(name="ground", durations={"tests/ground/new.py": 2.0, "tests/unit/x.py": 9.0})], path)
    assert json.loads(path.read_text()) == {"tests/ground/new.py": 2.0, "tests/ground/old.py": 3.0}
