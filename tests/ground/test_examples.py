"""The examples of `aboard train`, typed as their pages have them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asking import check_answers
from deadlines import slowness

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_c")]

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 600


@pytest.mark.parametrize("name", ["finetune", "chat", "lora", "pretrain"])
def test_an_example_shows_what_its_model_has_learned(name: str, tmp_path: Path) -> None:
    """Each line of its page, as printed; the last one asks what training had not, and prints what the page shows."""
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    page = (EXAMPLES / name / "README.md").read_text("utf-8")
    typed = re.findall(r"^    (.*)$", page, re.MULTILINE)
    (shown,) = re.findall(r"^```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -euo pipefail", *typed])],
        cwd=tmp_path / name,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS * slowness(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_answers(done.stdout)
    check_answers(shown)
    answers = [line for line in shown.splitlines() if not re.search(r"\d+ of \d+ ", line)]
    assert [line for line in answers if line not in done.stdout.splitlines()] == []
