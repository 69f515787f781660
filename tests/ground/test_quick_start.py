"""The quick start of the README, typed as it stands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asking import check_answers
from deadlines import slowness

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_c")]

ROOT = Path(__file__).parents[2]
SECONDS = 600


def test_the_quick_start_works_as_it_stands(tmp_path: Path, box_name: str) -> None:
    """From a fresh virtual environment: training on two hosts, a fault, its reason, a restart, a model that answers."""
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (section,) = re.findall(r"^## Quick start\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    first, *rest = re.findall(r"^    (.*)$", section, re.MULTILINE)
    # Tests don't use the network: pip finds what it would fetch, setuptools too, in the environment that runs them.
    packages = "venv/lib/python*/site-packages"
    outer = " ".join(path for path in sys.path if path.endswith("site-packages"))
    # Ranks that have as many threads as the machine has cores, on each of the hosts, would starve other tests.
    thread = "import os; os.environ.setdefault('OMP_NUM_THREADS', '1')"
    offline = f'rm -r {packages}/setuptools*; printf "%s\\n" {outer} "{thread}" > "$(echo {packages})/outer.pth"'
    script = "\n".join(["set -euxo pipefail", first, offline, *rest])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # "0" is how pip's variable says that the build is not isolated (pypa/pip issue 5735).
    env = {**os.environ, "PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "ABOARD_SANDBOX": box_name}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS * slowness(),
        check=False,
    )
    assert done.returncode == 0, done.stdout
    said = " ".join(done.stdout.split())
    assert f"ranks use {tmp_path}/venv/bin/python ($VIRTUAL_ENV)" in said
    why = said[said.index("-- aboard why") :][:2000]
    killed = r"attempt 1: run-killed on n2 at step \d+: rank 1 on n2.* was killed by SIGKILL; restart: .* transient"
    assert re.search(killed, why), why
    assert re.search(r"resumed from /shared/finetune/output/step-\d+, step [1-9]", said), why
    assert "AutoModelForCausalLM.from_pretrained('trained')" in said
    check_answers(done.stdout)
