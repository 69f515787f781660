"""Ruined data sets are reported and healthy ones pass: generated sets of many kinds, each judged whole."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from data_files import looked, written

from aboard.diagnoses import AboardError, Finding, Severity
from data_quality_sets import HEALTHY, RUINS, make_healthy, make_ruined

pytestmark = pytest.mark.ci  # eighty sets of 300 rows


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judge(rows: list[dict[str, Any]], **asked: Any) -> list[Finding]:
    return list(looked(written(Path("train.jsonl"), rows), **asked).findings)


@pytest.mark.parametrize("name", RUINS)
def test_a_ruined_set_is_reported(name: str) -> None:
    """Every kind of ruin is at least a warning that shows rows."""
    findings = [each for each in judge(make_ruined(name)) if each.severity > Severity.INFO]
    assert findings
    assert all("train.jsonl:" in each.seen for each in findings)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_passes(name: str) -> None:
    """No healthy set is stopped."""
    assert [each.seen for each in judge(make_healthy(name)) if each.severity is Severity.BLOCK] == []


def run_fix(finding_fix: str, comment: str) -> None:
    """Runs the line of a fix that has this comment, as a user would paste it."""
    (line,) = [line for line in finding_fix.splitlines() if comment in line]
    subprocess.run(["bash", "-c", line], check=True)


GOOD: dict[str, dict[str, Any]] = {
    "prompt-completion": {"prompt": "Who is N?", "completion": "It is N."},
    "alpaca": {"instruction": "Who is N?", "input": "", "output": "It is N."},
    "messages": {"messages": [{"role": "user", "content": "Who is N?"}, {"role": "assistant", "content": "It is N."}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "Who is N?"}, {"from": "gpt", "value": "It is N."}]},
    "text": {"text": "It is N, and nobody knew."},
}
BAD: dict[str, list[Any]] = {
    "prompt-completion": ["{", "[1]", {"prompt": "a"}, {"prompt": 3, "completion": "b"}, {"other": 1}],
    "alpaca": ["{", "7", {"instruction": "a"}, {"instruction": "a", "output": None}, {"output": "b"}],
    "messages": ["{", "null", {"messages": "a"}, {"messages": [3]}, {"messages": [{"role": "poet", "content": "a"}]}],
    "sharegpt": ["{", "", {"conversations": [{"from": "poet", "value": "a"}]}, {"conversations": [{"from": "gpt"}]}],
    "text": ["{", "[]", {"text": 3}, {"body": "a"}],
}


def number_rows(form: str, count: int) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(GOOD[form]).replace("N", f"number {at}")) for at in range(count)]


@pytest.mark.parametrize("form", GOOD)
def test_the_command_for_broken_rows_keeps_exactly_the_good_ones(form: str) -> None:
    """Run as printed, it leaves a file without a broken row, and without losing a good one."""
    rows = number_rows(form, 30)
    (broken,) = [each for each in judge([*rows, *BAD[form], *BAD[form]]) if each.code == "data-broken"]
    run_fix(broken.fix, "keeps the rows")
    kept = [json.loads(line) for line in Path("train.kept.jsonl").read_text().splitlines()]
    assert kept == rows
    assert "data-broken" not in {each.code for each in looked("train.kept.jsonl").findings}


@pytest.mark.parametrize("form", ["prompt-completion", "alpaca", "messages", "sharegpt"])
def test_the_command_for_empty_answers_removes_exactly_them(form: str) -> None:
    """Run as printed, every row that is left has an answer."""
    rows = number_rows(form, 40)
    blank = [json.loads(json.dumps(row).replace(f"It is number {at}.", " \\n")) for at, row in enumerate(rows[:6])]
    (found,) = [each for each in judge([*rows[6:], *blank]) if each.code == "data-blank"]
    run_fix(found.fix, "keeps the rows")
    assert [json.loads(line) for line in Path("train.kept.jsonl").read_text().splitlines()] == rows[6:]


def test_the_commands_for_mixed_formats_split_the_file() -> None:
    """Run as printed, both files are read together, with no row lost."""
    written(Path("train.jsonl"), [*number_rows("messages", 40), *number_rows("prompt-completion", 40)])
    with pytest.raises(AboardError) as caught:
        looked("train.jsonl")
    run_fix(caught.value.fix, "the rows of one format")
    run_fix(caught.value.fix, "the other rows")
    report = looked("train.messages.jsonl", "train.others.jsonl")
    assert (report.statistics.rows, report.statistics.broken) == (80, 0)
