"""Runs the stages of .ci/run or scripts/nightly, and reports them: seconds, failures, flaky and slow tests.

    python scripts/stages.py ci [--save-durations]              # for the order of tests, see tests/kit/durations.py
    python scripts/stages.py nightly [--directory DIRECTORY]    # continues an earlier run of this commit

A test with real hosts or process groups that fails runs once more, alone. If it passes then, it is FLAKY: both outputs
are printed and the run continues; more than two flaky tests fail the run.

Each stage runs in a control group of its own, which counts the CPU seconds of all that it starts; other load on the
machine hardly changes them. A stage that takes more than 1.5 × its budget fails. Where no control group can be made,
CPU seconds are "not measured" and fail nothing.
"""

import argparse
import html
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cpu_group import CpuGroup, open_cpu_group

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
# Tests of which a few take most of the time, so that their order matters.
TIMED_FOLDERS = ("tests/attacks/", "tests/ground/", "tests/train/")
MOST_FLAKY = 2
MOST_RETRIES = 10
MOST_OF_BUDGET = 1.5
SLOWEST = 20
STYLE = """
body { font: 15px system-ui; margin: 2em } td, th { padding: .2em .8em; text-align: left }
.good { color: #070 } .bad { color: #b00 } pre { background: #f4f4f4; padding: 1em; overflow: auto }
td div { background: #69c; height: 1em }
"""
# Ground tests mostly wait for ssh, leases and timeouts: with six workers two cores are busy 90 % of the time.
GROUND_WORKERS = 6
# Each worker imports the modules of tests, and many of them pyarrow, transformers or torch: seconds of CPU.
UNIT_WORKERS = 3
TRAIN_WORKERS = 2
# Attacks that import torch and transformers, without hosts: in the stage whose workers import these anyway.
MODEL_ATTACKS = [
    f"tests/attacks/test_{name}.py" for name in ("foreign_files", "found_settings", "model_author", "output_directory")
]
TRAINING = " ".join(("tests/train", *MODEL_ATTACKS))
# In one pool: no worker idles while another ends the last test of the first folder.
REAL_HOSTS = " ".join(("tests/ground", "tests/attacks", *(f"--ignore={path}" for path in MODEL_ATTACKS)))
# The commands with the lowest versions of the light dependencies: an environment that scripts/install-lowest has made,
# without the extra `train`, which these tests import.
LOWEST = "tests/unit/commands " + " ".join(
    f"--ignore=tests/unit/commands/{path}" for path in ("data", "test_cli_data.py", "train/test_train_flow.py")
)
# CPU seconds of each stage of CI. A tenth more than it took on an idle machine is a good budget.
CPU_BUDGETS = {
    "check": 210,
    "unit, lowest": 45,
    "unit, ci": 510,
    "ground": 1870,
    "ground, serial": 95,
    "train": 450,
    "bench faults": 75,
    "bench soak": 55,
}
PYTEST = (sys.executable, "-m", "pytest", "-q")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command; with `retry`, failed tests run once more."""

    name: str
    argv: Sequence[str]
    limit: float
    # CPU seconds.
    budget: float | None = None
    retry: bool = False
    # If it fails, the stages after it are skipped.
    essential: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Result:
    """The result of a stage."""

    name: str
    seconds: float = 0.0
    # None if not measured.
    cpu_seconds: float | None = None
    budget: float | None = None
    error: str = ""
    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    # The output of the first and of the second try.
    flaky: dict[str, list[str]] = field(default_factory=dict)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    # The average seconds of a test, by module.
    durations: dict[str, float] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.error and not self.failed


def pytest_stage(
    name: str, folders: str, marks: str, *, workers: int, minutes: float, lowest: str = "", **more: Any
) -> Stage:
    """Tests on real hosts by groups; others by modules, whose imports and fixtures take most of the time.

    `lowest` names an environment with the lowest versions, beside the active one.
    """
    by = "loadgroup" if folders == REAL_HOSTS else "loadfile"
    # tests/conftest.py orders them: xdist's own order, by the number of tests, would undo that.
    parallel = ("-n", str(workers), "--dist", by, "--no-loadscope-reorder") if workers else ()
    selected = ("-m", marks) if marks else ()
    python = f"{sys.prefix}-{lowest}/bin/python" if lowest else sys.executable
    pytest = (python, *PYTEST[1:])
    return Stage(name=name, argv=(*pytest, *folders.split(), *selected, *parallel), limit=60 * minutes, **more)


def bench_stage(name: str, *options: str, minutes: float) -> Stage:
    return Stage(name=f"bench {name}", argv=(sys.executable, f"bench/{name}.py", *options), limit=60 * minutes)


def list_ci_stages() -> list[Stage]:
    """Two idle cores give 3,600 CPU seconds in the half hour that all of them may take; tests also wait."""
    stages = [
        Stage(name="check", argv=("scripts/check",), limit=900, essential=True),
        pytest_stage(
            "unit, lowest", LOWEST, "not ci and not nightly", workers=0, minutes=5, lowest="lowest", retry=True
        ),
        pytest_stage("unit, ci", "tests/unit", "ci and not nightly", workers=UNIT_WORKERS, minutes=15, retry=True),
        pytest_stage(
            "ground", REAL_HOSTS, "not nightly and not serial", workers=GROUND_WORKERS, minutes=45, retry=True
        ),
        pytest_stage("ground, serial", REAL_HOSTS, "serial and not nightly", workers=0, minutes=15, retry=True),
        pytest_stage("train", TRAINING, "not nightly", workers=TRAIN_WORKERS, minutes=20, retry=True),
        bench_stage("faults", "--quick", minutes=5),
        bench_stage("soak", "--quick", minutes=5),
    ]
    return [replace(stage, budget=CPU_BUDGETS[stage.name]) for stage in stages]


def list_nightly_stages(directory: Path) -> list[Stage]:
    size = {"TEST_SIZE": "nightly"}
    tests = [
        Stage(name="check", argv=("scripts/check",), limit=600),
        pytest_stage("unit, lowest", LOWEST, "not nightly", workers=0, minutes=15, lowest="lowest", retry=True),
        pytest_stage(
            "unit, lowest of extras",
            "tests/unit/trainer tests/unit/commands",
            "not nightly",
            workers=UNIT_WORKERS,
            minutes=60,
            lowest="lowest-extras",
            retry=True,
        ),
        pytest_stage("unit", "tests/unit", "", workers=UNIT_WORKERS, minutes=60, retry=True, env=size),
        pytest_stage("ground", REAL_HOSTS, "not serial", workers=GROUND_WORKERS, minutes=150, retry=True, env=size),
        pytest_stage("ground, serial", REAL_HOSTS, "serial", workers=0, minutes=60, retry=True, env=size),
        pytest_stage("train", TRAINING, "", workers=TRAIN_WORKERS, minutes=120, retry=True, env=size),
    ]
    benches = [
        bench_stage(name, "--json", str(directory / f"bench-{name}.json"), minutes=120)
        for name in (
            "house",
            "check",
            "launch",
            "beacon",
            "scale",
            "logs",
            "redaction",
            "data",
            "train",
            "engines",
            "copies",
            "bringup",
            "standby",
            "slurm",
            "containers",
            "scripts",
            "script_goldens",
            "soak",
            "recovery",
            "recovery_month",
            "chaos",
            "report",
            "notify",
        )
    ]
    # A different sample for each commit: tests were written for the survivors of the first ones.
    seed = str(int(directory.name, 16))
    resume = str(directory / "mutants.jsonl")
    mutants = Stage(name="mutants", argv=("scripts/mutants", "--seed", seed, "--resume", resume), limit=7200)
    faults = bench_stage(
        "faults",
        "--resume",
        str(directory / "faults.json"),
        "--json",
        str(directory / "bench-faults.json"),
        minutes=240,
    )
    inside = [
        Stage(
            name=f"bench faults in {runtime}",
            argv=(sys.executable, "bench/faults.py", "--container", runtime),
            limit=60 * 60,
        )
        for runtime in ("apptainer", "podman")
    ]
    # Ten minutes for each of 33 decoders, two at a time.
    fuzz = bench_stage("fuzz", "--json", str(directory / "bench-fuzz.json"), minutes=200)
    # Other people's logs are no part of the repository.
    logs = os.environ.get("ABOARD_REAL_LOGS")
    real_logs = [bench_stage("real_logs", "--logs", logs, minutes=15)] if logs and Path(logs).is_dir() else []
    return [*tests, mutants, *benches, *real_logs, faults, *inside, fuzz]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=("ci", "nightly"))
    parser.add_argument("--directory", type=Path, help="nightly: directory of the results and the summary page")
    parser.add_argument("--save-durations", action="store_true", help="ci: write tests/durations.json")
    options = parser.parse_args()
    os.chdir(ROOT)
    # Otherwise every process would recompile what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    if options.size == "ci":
        results = list(run_stages(list_ci_stages()))
        if options.save_durations:
            save_durations(results, DURATIONS)
    else:
        results = run_nightly(options.directory or ROOT / ".nightly")
    sys.exit(print_summary(results, time.monotonic() - began))


def save_durations(results: Sequence[Result], path: Path) -> None:
    """Replaces what was measured, and keeps the rest; modules that are gone go."""
    durations: dict[str, float] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for result in results:
        durations |= {module: took for module, took in result.durations.items() if module.startswith(TIMED_FOLDERS)}
    there = {module: took for module, took in sorted(durations.items()) if (path.parents[1] / module).exists()}
    path.write_text(json.dumps(there, indent=1) + "\n", "utf-8")


def run_nightly(base: Path) -> list[Result]:
    """Runs all stages that have no good result for this commit yet."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    directory = base.resolve() / commit.stdout.strip()
    directory.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for stage in list_nightly_stages(directory):
        kept = directory / f"stage-{stage.name.replace(' ', '-').replace(',', '')}.json"
        result = Result(**json.loads(kept.read_text())) if kept.exists() else None
        if result is None or not result.ok:
            result = run_stage(stage)
            kept.write_text(json.dumps(asdict(result)))
        results.append(result)
        (directory / "summary.html").write_text(write_page(commit.stdout.strip(), results), "utf-8")
    print(f"{directory / 'summary.html'}")
    return results


def run_stages(stages: Sequence[Stage]) -> Iterator[Result]:
    for stage in stages:
        result = run_stage(stage)
        yield result
        # One that only takes too much CPU says nothing against the stages after it.
        slow = judge_cpu_seconds(stage.name, result.cpu_seconds, stage.budget)
        if stage.essential and (result.failed or result.error not in ("", slow)):
            return


def run_stage(stage: Stage) -> Result:
    """Runs it in its own process group, then retries failed tests."""
    print(f"=== {stage.name}", flush=True)
    result = Result(name=stage.name, budget=stage.budget)
    began = time.monotonic()
    with open_cpu_group(stage.name) as group:
        code, report = _run_process(stage.argv, stage, group)
        _count_tests(report, result)
        if code is None:
            result.error = f"still running after {stage.limit:.0f} s" + _name_unfinished(report)
        elif code != 0 and not result.failed:
            result.error = f"exit code {code}"
        # What a second try takes is not what the stage takes.
        result.cpu_seconds = group.read_seconds() if group else None
        if stage.retry:
            _retry_failed(stage, result, group)
    result.error = result.error or judge_cpu_seconds(stage.name, result.cpu_seconds, stage.budget)
    if "--json" in stage.argv:
        figures = Path(stage.argv[stage.argv.index("--json") + 1])
        result.figures = json.loads(figures.read_text())["figures"] if figures.exists() else []
    result.seconds = time.monotonic() - began
    state = "ok" if result.ok else "FAILED"
    took = f"{result.seconds:.0f} s, CPU {_format_cpu_seconds(result.cpu_seconds)}"
    print(f"=== {stage.name}: {state}, {took} {result.error}".rstrip(), flush=True)
    return result


def judge_cpu_seconds(name: str, seconds: float | None, budget: float | None) -> str:
    """The error of a stage that took too much; "" for one that did not, and for one that was not measured."""
    if seconds is None or budget is None or seconds <= MOST_OF_BUDGET * budget:
        return ""
    return (
        f"{name} took {seconds:.0f} CPU seconds, more than {MOST_OF_BUDGET} × its budget of {budget:.0f}:"
        " make its tests cheaper, or raise the budget in scripts/stages.py and say why"
    )


def _format_cpu_seconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds:.0f} s"


def _run_process(argv: Sequence[str], stage: Stage, group: CpuGroup | None) -> tuple[int | None, list[dict[str, Any]]]:
    """The exit code, None when the time limit was reached, and the lines that tests/conftest.py wrote."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "report.jsonl")
        env = {**os.environ, **stage.env, "ABOARD_TEST_REPORT": str(path)}
        process = subprocess.Popen(
            group.wrap_command(argv) if group else argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code: int | None = process.wait(stage.limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return code, [json.loads(line) for line in lines]


def _count_tests(report: list[dict[str, Any]], result: Result) -> None:
    seconds: dict[str, float] = {}
    outcomes: dict[str, str] = {}
    for line in report:
        if "outcome" not in line:
            continue
        test = line["test"]
        seconds[test] = seconds.get(test, 0.0) + line.get("seconds", 0.0)
        if line["outcome"] == "failed":
            result.failed[test] = result.failed.get(test, "") + line["text"]
        if line["phase"] == "call" or line["outcome"] == "skipped":
            outcomes[test] = line["outcome"]
    result.passed = sum(outcome == "passed" and test not in result.failed for test, outcome in outcomes.items())
    result.skipped = sum(outcome == "skipped" for outcome in outcomes.values())
    modules: dict[str, list[float]] = {}
    for test, took in seconds.items():
        modules.setdefault(test.partition("::")[0], []).append(took)
    result.durations = {module: round(sum(each) / len(each), 1) for module, each in modules.items()}
    result.slowest = sorted(((took, test) for test, took in seconds.items()), reverse=True)[:SLOWEST]


def _name_unfinished(report: list[dict[str, Any]]) -> str:
    begun = {line["test"] for line in report}
    over = {line["test"] for line in report if line.get("phase") == "teardown"}
    return f", in {', '.join(sorted(begun - over))}" if begun - over else ""


def _retry_failed(stage: Stage, result: Result, group: CpuGroup | None) -> None:
    """Runs failed tests once more, one at a time: a test that passes alone was disturbed by others, or is unstable."""
    for test in list(result.failed)[:MOST_RETRIES]:
        print(f"=== {stage.name}: once more, alone: {test}", flush=True)
        # pytest-xdist adds the group to a test's name.
        code, report = _run_process((*stage.argv[: len(PYTEST)], re.sub(r"@[\w-]+$", "", test)), stage, group)
        if code == 0:
            result.flaky[test] = [result.failed.pop(test), "passed when run alone"]
            result.passed += 1
        else:
            again = Result(name=stage.name)
            _count_tests(report, again)
            result.failed[test] += "\n--- once more, alone ---\n" + "".join(again.failed.values())


def print_summary(results: Sequence[Result], seconds: float) -> int:
    """Prints stages, slow, flaky and failed tests, and a summary line; returns the exit code."""
    print("\nSECONDS OF EACH STAGE\n    wall           CPU    budget")
    for result in results:
        budget = "" if result.budget is None else f"{result.budget:.0f} s"
        columns = f"{result.seconds:6.0f} s  {_format_cpu_seconds(result.cpu_seconds):>12}  {budget:>8}"
        print(f"{columns}  {result.name}{'' if result.ok else '  FAILED ' + result.error}")
    print(f"\nTHE {SLOWEST} SLOWEST TESTS")
    for took, test in sorted((slow for result in results for slow in result.slowest), reverse=True)[:SLOWEST]:
        print(f"{took:8.1f}  {test}")
    flaky = {test: texts for result in results for test, texts in result.flaky.items()}
    failed = {test: text for result in results for test, text in result.failed.items()}
    for title, tests in (("FLAKY", flaky), ("FAILED", {test: [text] for test, text in failed.items()})):
        for test, texts in tests.items():
            print(f"\n{title} {test}")
            for text in texts:
                print("    " + text.strip().replace("\n", "\n    "))
    passed = sum(result.passed for result in results)
    broken = sum(not result.ok and not result.failed for result in results)
    if len(flaky) > MOST_FLAKY:
        print(f"\n{len(flaky)} tests are flaky; more than {MOST_FLAKY} fail the run")
    print(f"\n{passed} passed, {len(failed) + broken} failed, {len(flaky)} flaky, {seconds:.0f} s")
    return 0 if all(result.ok for result in results) and len(flaky) <= MOST_FLAKY else 1


def write_page(commit: str, results: Sequence[Result]) -> str:
    """One self-contained HTML page: stages, figures with their limits, failures and flaky tests."""
    most = max((result.seconds for result in results), default=0.0) or 1.0
    stages = [
        (
            result.name,
            _format_mark(good=result.ok, words=("ok", "failed")),
            result.passed,
            len(result.failed),
            len(result.flaky),
            f"{result.seconds:.0f}",
            _format_cpu_seconds(result.cpu_seconds),
            f"<div style='width:{300 * result.seconds / most:.0f}px'></div>",
        )
        for result in results
    ]
    figures = [
        (
            result.name,
            html.escape(figure["name"]),
            f"{figure['value']:g} {figure['unit']}",
            f"{figure['bar']:g}",
            _format_mark(good=figure["holds"], words=("holds", "missed")),
            html.escape(figure["note"]),
        )
        for result in results
        for figure in result.figures
    ]
    slow = sorted((slow for result in results for slow in result.slowest), reverse=True)[:SLOWEST]
    texts = [(f"Flaky: {test}", texts[0]) for result in results for test, texts in result.flaky.items()]
    texts += [(f"Failed: {test}", text) for result in results for test, text in result.failed.items()]
    texts += [(f"Failed: {result.name}", result.error) for result in results if result.error]
    failures = "".join(f"<h3>{html.escape(title)}</h3><pre>{html.escape(text)}</pre>" for title, text in texts)
    return (
        f"<!doctype html><meta charset=utf-8><title>Nightly {commit}</title>\n<style>{STYLE}</style>\n"
        f"<h1>Nightly tests of {commit}</h1>\n"
        + _format_table(("stage", "", "passed", "failed", "flaky", "seconds", "CPU", ""), stages)
        + "<h2>Figures</h2>\n"
        + _format_table(("bench", "figure", "value", "limit", "", ""), figures)
        + f"<h2>Failures</h2>\n{failures or 'None.'}\n<h2>Slowest tests</h2>\n"
        + _format_table(("seconds", "test"), [(f"{took:.1f}", html.escape(test)) for took, test in slow])
    )


def _format_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{head}" for head in heads)]
    lines += ["<tr>" + "".join(f"<td>{cell}" for cell in row) for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>\n"


def _format_mark(*, good: bool, words: tuple[str, str]) -> str:
    return f"<b class=good>{words[0]}</b>" if good else f"<b class=bad>{words[1]}</b>"


if __name__ == "__main__":
    main()
