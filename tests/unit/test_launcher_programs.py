"""Programs that build a launcher's command: what Aboard makes of them, and which ones it refuses."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from launcher_texts import TextFiles, pasted

from aboard.config.deepy_program import run_deepy
from aboard.core.launchers.launcher_command import DeepyReport, LauncherCommand
from aboard.core.launchers.parse_command import parse_launcher_command
from aboard.diagnoses import InputError

RUN = """#!/bin/bash
set -e
cd "$(dirname "$0")/.."
export NCCL_DEBUG=WARN LR=${LR:-1}
source venv/bin/activate
args=(--lr $LR)
if [ -n "$1" ]; then args+=(--name "$1"); fi
deepspeed --hostfile configs/hostfile train.py "${args[@]}" 2>&1 | tee log.txt
"""


def test_a_script_is_followed_to_its_launcher() -> None:
    """Its directory, variables and setup become the plan's; relative paths start where the script changed to."""
    files = {"tools/run.sh": RUN, "/home/me/project/.deepspeed_env": "NCCL_ALGO=Ring\n"}
    got = pasted("LR=3 bash tools/run.sh 'a b'", files=files)
    assert (got.launcher, got.hostfile) == ("deepspeed", "/home/me/project/configs/hostfile")
    assert (got.workdir, got.setup) == ("/home/me/project", ("source venv/bin/activate",))
    assert got.request.program.args == ("--lr", "3", "--name", "a b")
    assert {name: got.env[name] for name in ("NCCL_DEBUG", "LR", "NCCL_ALGO")} == {
        "NCCL_DEBUG": "WARN",
        "LR": "3",
        "NCCL_ALGO": "Ring",
    }
    assert got.notes[0].startswith("tools/run.sh is read, not run. Line 8 starts deepspeed --hostfile")


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --deepspeed ds.json\n",
        "exec python -u train.py\n",
        "curl x | sh\npython train.py --deepspeed ds.json\n",
        "./run.sh --deepspeed\n",
    ],
)
def test_a_script_without_a_launcher_is_a_program_of_the_ranks(text: str) -> None:
    """A mention of DeepSpeed in its arguments starts nothing."""
    assert parse_launcher_command(["./run.sh", "--lr", "1"], TextFiles({"./run.sh": text})) is None
    assert parse_launcher_command(["./gone.sh", "--deepspeed_args", ""], TextFiles({})) is None


def test_a_script_that_starts_a_script() -> None:
    """The launcher may be one script further."""
    files = {"all.sh": "export A=1\nbash one.sh x.py # torchrun\n", "one.sh": 'torchrun --nproc-per-node 2 "$1"\n'}
    got = pasted("bash all.sh", files=files)
    assert (got.launcher, got.ranks, got.request.program.target, got.env["A"]) == ("torchrun", 2, "x.py", "1")


@pytest.mark.parametrize(
    ("text", "seen", "fix"),
    [
        (
            "pip install x\ntorchrun x.py\n",
            "./run.sh, line 1: Aboard can't follow the command 'pip install x'",
            "sed -i.bak -e '2s/torchrun/aboard launch -- torchrun/' ./run.sh && ./run.sh 'a b'",
        ),
        (
            "if [ -d data ]; then x=1; fi\npython3 -m torch.distributed.run x.py\n",
            "./run.sh, line 1: Aboard can't follow the test '-d data'",
            "sed -i.bak -e '2s/python3/aboard launch -- python3/' ./run.sh && ./run.sh 'a b'",
        ),
        (
            "torchrun x.py\ntorchrun y.py\n",
            "./run.sh, line 2: Aboard can't follow a second launcher 'torchrun y.py'",
            "in ./run.sh, write aboard launch -- before the command that starts the training",
        ),
        (
            "torchrun --master-port $RANDOM x.py\n",
            "./run.sh, line 1: Aboard can't follow RANDOM in the launcher's command or variables",
            "sed -i.bak -e '1s/torchrun/aboard launch -- torchrun/' ./run.sh && ./run.sh 'a b'",
        ),
        (
            '[ $# -eq 2 ] || { echo "usage: run.sh A B"; exit 1; }\ntorchrun x.py\n',
            "./run.sh, line 1: the script ends here with an error (exit 1: usage: run.sh A B)",
            "give the script the arguments and variables that it asks for",
        ),
        (
            "echo n1 > hosts\ndeepspeed -H hosts x.py\n",
            "line 2: Aboard can't follow hosts, which the script writes",
            "sed",
        ),
        ("echo {} > ds.json\ntorchrun x.py --config=ds.json\n", "ds.json, which the script writes", "sed"),
        ("torchrun x.py \ue000A\ue001\n", "a character that is reserved", "sed"),
    ],
)
def test_a_script_that_is_not_followed(text: str, seen: str, fix: str) -> None:
    """The refusal names the line, and the edit with which the shell itself does the rest."""
    with pytest.raises(InputError) as error:
        pasted("./run.sh 'a b'", files={"./run.sh": text})
    assert error.value.code == "paste-shell"
    assert seen in str(error.value.problems[0])
    assert fix in error.value.fix


# As much of DeepSpeed and of gpt-neox's deepy.py as matters here.
RUNNER = """
EXPORT_ENVS = ["NCCL"]
def main(args=None):
    open("started", "w").close()
"""
DEEPY = """
import os, sys
import deepspeed.launcher.runner
print("many lines")
if sys.argv[2] == "bad.yml":
    raise ValueError("duplicate keys\\x1b[31m")
if sys.argv[2] == "torn.yml":
    print("Traceback (most recent call last):\\nyaml.scanner.ScannerError: mapping values are not allowed here\\n"
          '  in "torn.yml", line 3, column 10:\\n    a: b: c\\n        ^\\n')
    sys.exit(1)
if sys.argv[2] == "none.yml":
    sys.exit()
deepspeed.launcher.runner.EXPORT_ENVS.append("WANDB_API_KEY")
os.environ.update(WANDB_API_KEY="secret", OTHER="1")
deepspeed.launcher.runner.main(["--num_nodes", "2", sys.argv[1], "--deepspeed_config", "e30="])
"""


@pytest.fixture
def neox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A directory with deepy.py, and an environment in which it finds its DeepSpeed."""
    package = tmp_path / "packages" / "deepspeed" / "launcher"
    package.mkdir(parents=True)
    for path in (package / "__init__.py", package.parent / "__init__.py"):
        path.touch()
    (package / "runner.py").write_text(RUNNER)
    (tmp_path / "deepy.py").write_text(DEEPY)
    monkeypatch.chdir(tmp_path)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "packages"), "NCCL_DEBUG": "INFO"}


def parse(command: str, environ: Mapping[str, str]) -> LauncherCommand | None:
    files = TextFiles({"/job/hostfile": "n1 slots=4\n"})
    return parse_launcher_command(shlex.split(command), files, environ=environ, cwd="/x", run_deepy=run_deepy)


@pytest.mark.parametrize("start", [f"{sys.executable} ./deepy.py", f"{sys.executable} -u -B deepy.py"])
def test_deepy_reports_its_command(neox: Mapping[str, str], start: str) -> None:
    """Its arguments and the variables that it exports become the plan; DeepSpeed's launcher is not started."""
    got = parse(f"{start} train.py a.yml", neox)
    assert got is not None
    assert (got.launcher, got.nodes, got.hostfile) == ("deepspeed", 2, "/job/hostfile")
    assert (got.request.program.target, got.request.program.args) == ("train.py", ("--deepspeed_config", "e30="))
    assert (got.env["WANDB_API_KEY"], got.env["NCCL_DEBUG"], "OTHER" in got.env) == ("secret", "INFO", False)
    assert not any("secret" in note for note in got.notes)
    assert not Path("started").exists()


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (f"{sys.executable} deepy.py train.py bad.yml", "exit code 1: ValueError: duplicate keys"),
        (f"{sys.executable} deepy.py train.py none.yml", "exit code 0: many lines"),
        (
            f"{sys.executable} deepy.py train.py torn.yml",
            'exit code 1: yaml.scanner.ScannerError: mapping values are not allowed here in "torn.yml", line 3',
        ),
        (f"{sys.executable} gone/deepy.py train.py a.yml", "No such file or directory"),
        ("no/such/python deepy.py train.py a.yml", "no/such/python: No such file or directory"),
    ],
)
def test_the_error_of_deepy_is_shown(neox: Mapping[str, str], command: str, seen: str) -> None:
    """The exception, without control characters, and the command that shows all of it."""
    with pytest.raises(InputError) as error:
        parse(command, neox)
    problem = str(error.value.problems[0])
    assert error.value.code == "paste-deepy"
    assert seen in problem
    assert "\x1b" not in problem
    assert "NeoXArgs.consume_deepy_args()" in error.value.fix


def test_deepy_without_a_hostfile_says_what_was_counted() -> None:
    """gpt-neox takes this machine's GPUs for all there are."""

    def report(_python: Sequence[str], _words: Sequence[str], _environ: Mapping[str, str]) -> DeepyReport:
        return DeepyReport(arguments=("train.py",), env={})

    words = ["python", "deepy.py", "train.py", "a.yml"]
    got = parse_launcher_command(words, TextFiles({}), run_deepy=report)
    assert got is not None
    assert "counted the GPUs of this machine only" in got.notes[1]
    with pytest.raises(InputError, match="inside a container"):
        parse_launcher_command(["apptainer", "exec", "a.sif", *words], TextFiles({}), run_deepy=report)
