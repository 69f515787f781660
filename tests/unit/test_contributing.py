"""What CONTRIBUTING shows as a diff can be applied, and works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = """
from aboard.checks import host
from aboard.checks.host.bad_memory import ERRORS
from aboard.core.cluster.cluster import Cluster
from aboard.core.probes.facts import Facts
from aboard.core.cluster.node import Node
from aboard.core.probes.probe import FileContents
from aboard.diagnoses.catalogue import all_diagnoses

assert "host-bad-memory" in all_diagnoses()
for count, expected in (("0", []), ("2", ["sudo edac-util -v    # on n1; which module is it? Replace it"])):
    answer = ERRORS.parse(FileContents(files={"/sys/devices/system/edac/mc/mc0/ue_count": count}))
    facts = Facts(cluster=Cluster(nodes=(Node(name="n1"),)), contacts={}, answers={ERRORS.name: {"n1": answer}})
    assert [each.fix for each in host.SUBJECT.judge(facts) if each.code == "host-bad-memory"] == expected
print("ok")
"""


@pytest.mark.ci
def test_a_check_of_a_counter_takes_two_edits(tmp_path: Path) -> None:
    """Applied to a copy of the source, the diff gives a check that fires, and one that doesn't."""
    first = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)[0]
    assert len(re.findall(r"^\+\+\+ ", first, re.MULTILINE)) == 2
    for room in ("lazy_dataclass.py", "__init__.py", "diagnoses", "core", "checks", "agent"):
        source, target = ROOT / "src/aboard" / room, tmp_path / "src/aboard" / room
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=first, text=True, check=True)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("ok\n", "")
