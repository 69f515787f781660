"""`aboard launch` on this machine alone, as a person types it: no nodes, no file, no root."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ground


class Here:
    """A directory to launch in, with a state directory of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def aboard(self, *argv: str, stderr: int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "XDG_STATE_HOME": str(self.path / "state"), "COLUMNS": "100"}
        return subprocess.run(
            [sys.executable, "-m", "aboard", *argv],
            cwd=self.path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
        )

    def launch(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        return self.aboard("launch", "--check", "none", *argv)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    made = Here(tmp_path)
    made.put("say.py", "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:], os.getcwd())\n")
    return made


def test_a_script_and_its_arguments(here: Here) -> None:
    """It runs where the command was typed, and gets its arguments as they are; what it says is shown and kept."""
    ran = here.launch("--", "say.py", "--lr", "a b")
    assert ran.returncode == 0, ran.stderr
    assert f"[rank 0] rank 0 ['--lr', 'a b'] {here.path}" in ran.stdout
    assert "done: finished: 1 rank" in ran.stdout
    assert here.aboard("logs", "--raw").stdout == f"rank 0 ['--lr', 'a b'] {here.path}\n"
    assert "\tfinished\t" in here.aboard("status").stdout


def test_several_ranks_with_the_quick_check(here: Here) -> None:
    """The nodes are looked at first; lines that are alike are one."""
    ran = here.aboard("launch", "--ranks", "3", "--", "say.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[ranks 0-2 ×3 ≈]" in here.aboard("logs").stdout


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-m", "--", "say", "x"), "rank 0 ['x']"),
        (("--", "-m", "say", "x"), "rank 0 ['x']"),
        (("--", "sh", "-c", "echo from $0 $RANK", "sh"), "from sh 0"),
        (("--no-python", "--", "./own.py"), "by itself"),
    ],
)
def test_other_ways_to_name_a_program(here: Here, argv: tuple[str, ...], said: str) -> None:
    """A module before or behind the dashes, a program of any name, a script that is one."""
    here.put("own.py", "#!/bin/sh\necho by itself\n")
    (here.path / "own.py").chmod(0o755)
    ran = here.launch("--env", f"PYTHONPATH={here.path}", *argv)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert said in ran.stdout


def test_the_exit_code_is_the_ranks(here: Here) -> None:
    """With the verdict: which rank, what it raised, what to type."""
    here.put("bad.py", "import os\nif os.environ['RANK'] == '1': raise KeyError('text')\nimport time; time.sleep(60)\n")
    ran = here.launch("--ranks", "2", "--", "bad.py")
    assert ran.returncode == 1
    assert "block run-raised localhost seen: rank 1 on localhost, Python started, raised KeyError: 'text'" in ran.stdout
    assert "--rank 1" in ran.stdout
    here.put("code.py", "raise SystemExit(7)")
    assert here.launch("--", "code.py").returncode == 7
    assert here.launch("--", "sh", "-c", "kill -9 $$").returncode == 137
    gone = here.launch("--", "no-such-program")
    assert gone.returncode == 127
    assert "run-not-started" in gone.stdout


def test_env_comes_from_options_and_files(here: Here) -> None:
    """A NAME alone is taken from here; a secret's value stands in no file that the run leaves."""
    here.put("env", "A=1\n# no\nB='two'\n")
    here.put("show.py", "import os\nprint(*(os.environ[name] for name in ('A', 'B', 'HOME', 'MY_TOKEN')))")
    ran = here.launch("--env-file", "env", "--env", "HOME", "--env", "MY_TOKEN=sesame-open", "--", "show.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"1 two {os.environ['HOME']} " in ran.stdout
    kept = [path.read_bytes() for path in (here.path / "state").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"sesame-open" in each for each in kept)
    assert "sesame-open" not in ran.stdout


def test_a_dry_run_starts_nothing(here: Here) -> None:
    """It shows the plan, as text, as JSON, or for another launcher, after what would stop the run; no run is left."""
    text = here.launch("--dry-run", "--ranks", "2", "--", "say.py", "x")
    assert text.returncode == 0, text.stderr
    assert "2 ranks" in text.stdout
    assert "say.py x" in text.stdout
    plan = json.loads(here.launch("--dry-run", "--json", "--ranks", "2", "--", "say.py").stdout)
    assert plan["world"] == 2
    assert "--nproc-per-node 2" in here.launch("--dry-run", "--as", "torchrun", "--ranks", "2", "--", "say.py").stdout
    merged = here.aboard("launch", "--dry-run", "--ranks", "2", "--", "gone.py", stderr=subprocess.STDOUT)
    assert merged.returncode == 2
    assert 0 <= merged.stdout.find("software-program") < merged.stdout.find("dry-run")
    assert not (here.path / "state").exists()


def test_an_old_command_is_pasted(here: Here) -> None:
    """The flags of torchrun are read into the plan; one that it doesn't have is refused by name."""
    ran = here.launch("--", "torchrun", "--standalone", "--nproc-per-node", "2", "say.py", "--x")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # In the words of whichever rank was first.
    assert re.search(r"\[ranks 0-1 ×2 ≈\] rank [01] \['--x'\]", here.aboard("logs").stdout)
    wrong = here.launch("--", "torchrun", "--nproc-pre-node", "2", "say.py")
    assert wrong.returncode == 3
    assert "--nproc-per-node" in wrong.stderr


@pytest.mark.parametrize(
    ("argv", "code", "fix"),
    [
        ((), "launch-command", "aboard launch --check none -- train.py"),
        (("say.py",), "launch-command", "aboard launch --check none -- say.py"),
        (("--json", "--", "say.py"), "launch-dry", "--dry-run --json"),
        (("--dry-run", "--as", "torchrun", "--json", "--", "say.py"), "launch-dry", "remove --json"),
        (("--env", "NOT_THERE", "--", "say.py"), "launch-env", "--env NOT_THERE=VALUE"),
        (("--env-file", "nowhere", "--", "say.py"), "file", "ls -l nowhere"),
        (("--env", "RANK=3", "--", "say.py"), "launch-plan", "remove RANK"),
    ],
)
def test_what_is_typed_wrong(here: Here, argv: tuple[str, ...], code: str, fix: str) -> None:
    """Each mistake has a code and what to type instead."""
    ran = here.launch(*argv)
    assert ran.returncode == 3
    assert code in ran.stderr
    assert fix in ran.stderr
    assert "Traceback" not in ran.stderr


def test_stop_and_status_with_nothing_there(here: Here) -> None:
    """They say that there is nothing, and what to type."""
    assert "none of your runs is active" in here.aboard("stop").stderr
    assert here.aboard("status").stdout.splitlines()[1:] == []
    assert "no run yet" in here.aboard("status", "--live").stderr


def test_a_program_hears_of_the_run_and_its_figures_are_in_a_file(here: Here) -> None:
    """As aboard.yaml says, once that is allowed; in a file that was found, it is not by itself."""
    here.put("aboard.yaml", "notify: {command: [sh, -c, cat >> heard]}\n")
    refused = here.launch("--", "say.py")
    assert (refused.returncode, (here.path / "heard").exists()) == (3, False)
    assert "starts this program on this machine, with your rights" in refused.stderr
    (here.path / "figures").mkdir()
    here.put("own.yaml", f"notify: {{command: [sh, -c, cat >> heard]}}\nmetrics: {{textfile: {here.path}/figures}}\n")
    ran = here.launch("own.yaml", "--", "say.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    message = json.loads((here.path / "heard").read_text())
    assert (message["event"], message["headline"]) == ("end", f"{message['run']} has finished")
    text = (here.path / "figures" / f"aboard-{message['run']}.prom").read_text()
    assert f'aboard_run_exit_code{{run="{message["run"]}"}} 0' in text
    here.put("bad.yaml", f"metrics: {{textfile: {here.path}/none}}\n")
    warned = here.launch("bad.yaml", "--", "say.py")
    assert f"warning: metrics.textfile: can't write in {here.path}/none on" in warned.stdout
    assert f'sudo install -d -m 755 -o "$(id -un)" {here.path}/none' in warned.stdout
    checked = here.aboard("check", "bad.yaml", "--quick")
    assert "warn metrics-unwritten" in checked.stdout
