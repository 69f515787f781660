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
from aboard.doctor.host import subject as host
from aboard.doctor.host.bad_memory import ERRORS
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
    for room in ("lazy_dataclass.py", "__init__.py", "diagnoses", "core", "doctor", "trainer", "agent"):
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


ASK_SETTING = """
import json
from pathlib import Path
from click.testing import CliRunner
from aboard.commands.command_line import cli
from aboard.trainer.settings.train_settings import load_train_settings
from aboard.core.plan.training_settings import SETTINGS
from aboard.diagnoses import InputError

def run(text):
    Path("aboard.yaml").write_text("data: {files: rows.jsonl}\\ntrain: {model: ./model, " + text + "}\\n")
    try:
        return load_train_settings(["aboard.yaml"])
    except InputError as error:
        return [(problem.where, problem.seen, str(problem.fix)) for problem in error.problems]

schema = json.loads(CliRunner().invoke(cli, ["init", "--schema"]).output)["$defs"]["TrainSection"]["properties"]
assert schema["z_loss"]["description"].startswith("The weight of the squared logarithm")
assert schema["z_loss"]["anyOf"][0] == {"maximum": 1000000.0, "minimum": 0, "type": "number"}
assert run("z_loss: 1e-4").settings["z_loss"] == 1e-4
assert "  z_loss: 0.0001 " in CliRunner().invoke(cli, ["train", "--print-config"]).output
seen = "train.z_loss needs the logits as a whole, and train.chunked_loss never has them"
assert run("z_loss: 1e-4, chunked_loss: true") == [("aboard.yaml:2:33", seen, "keep one of them")]
assert run("z_loss: -1")[0][1] == "train.z_loss is -1"
assert run("z_loss_weight: 1")[0][2] == "write z_loss: 1e-4"
assert "could not be compared" in SETTINGS["z_loss"].at_resume
print("ok")
"""


@pytest.mark.ci
def test_a_setting_with_a_conflict_and_its_line_of_documentation_takes_three_edits(tmp_path: Path) -> None:
    """Applied to a copy, the diff gives a setting in the schema and in --print-config, with its conflict."""
    diffs = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    (change,) = [each for each in diffs if "z_loss" in each]
    edited = re.findall(r"^\+\+\+ b/(.*)", change, re.MULTILINE)
    assert len(edited) == 3
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/train.md", tmp_path / "docs")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=change, text=True, check=True)
    assert "`z_loss`" in (tmp_path / "docs/train.md").read_text("utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-c", ASK_SETTING]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")
