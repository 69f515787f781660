"""The first day on GPUs from its start to its end, on hosts whose GPUs are simulated."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from browser import Browser
from deadlines import slowness

from first_gpu_day.command import BUNDLE, COLUMN, PAGE, RUNS

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_a")]

SCRIPT = Path(__file__).parents[2] / "scripts" / "first-gpu-day"
SECONDS = 5400
# What CPUs can't show: tools and builds that are not there, and what is compiled or measured on GPUs only.
NOT_RUN = {"nccl-tests", "torchtitan", "attention-flash", "attention-flex", "compiled", "bare-compiled"}


def test_a_simulated_day_ends_with_a_page_and_a_bundle(tmp_path: Path) -> None:
    """Each run shows what it should, or why it was not run; a second start has nothing left to do."""
    words = [sys.executable, str(SCRIPT), "--simulated", "--minutes", "1000", "--directory", str(tmp_path / "day")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS * slowness(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "day" / BUNDLE) as tar:
        results = json.load(tar.extractfile("first-gpu-day/results.json") or pytest.fail("no results"))
        assert f"first-gpu-day/{PAGE}" in tar.getnames()
    assert [each["name"] for each in results] == [run.name for run in RUNS]
    states = {each["name"]: each["state"] for each in results}
    odd = {name: state for name, state in states.items() if state != "as expected"}
    assert odd == {name: "not run" for name in odd if name in NOT_RUN}, json.dumps(results, indent=1)
    assert (tmp_path / "day" / COLUMN).read_text().count("\n") == len(RUNS) + 2
    with Browser() as browser:
        for width, dark in ((1400, False), (400, True)):
            browser.open_page(tmp_path / "day" / PAGE, width=width, dark=dark)
            assert browser.complaints == []
