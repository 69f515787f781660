"""Ruined data sets are reported and healthy ones pass: generated sets of many kinds, each judged whole."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from data_files import looked, written
from data_quality_sets import HEALTHY, RUINS, make_healthy, make_ruined

from aboard.diagnoses import Finding, Severity

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
