"""The command line as a person meets it: help, typing mistakes, exit codes."""

import io
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from deadlines import slowness
from made_events import made_event
from slurm_commands import SlurmStandIns
from typed_commands import aboard

from aboard.commands.command_line import cli, main
from aboard.commands.sandbox.command import _build_terminal_environment
from aboard.core.launchers.capture_failures import build_late_failure
from aboard.engine.request.typed_words import find_values, format_typed_command
from aboard.record.run_record import Record
from aboard.record.runs import Runs


def test_help_lists_the_verbs_in_the_order_of_the_story() -> None:
    """`aboard --help` tells the way, not the alphabet: set up, run, understand, practise."""
    # As a module too, in a process of its own.
    argv = [sys.executable, "-m", "aboard", "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    heads = ("Set up:", "  init ", "  check ", "Run:", "  launch ", "Understand:", "  why ", "Practise:", "  sandbox ")
    assert [*heads] == sorted(heads, key=said.index)


def test_a_group_without_arguments_prints_its_help() -> None:
    """`aboard` and `aboard sandbox` print what they can do, as --help does, with every version of click."""
    for words in ((), ("sandbox",)):
        assert aboard(*words) == aboard(*words, "--help")


def test_each_command_has_help() -> None:
    """--help of every command, and of every fault of the sandbox, is its usage in lines."""
    found = []

    def visit(command: click.Command, *words: str) -> None:
        found.append(words)
        ran = aboard(*words, "--help")
        usage = ran.stdout.startswith(f"Usage: {shlex.join(('aboard', *words))} ")
        assert (ran.code, ran.stderr, usage, "\\n" in ran.stdout) == (0, "", True, False), words
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                visit(command.get_command(context, name) or command, *words, name)

    visit(cli)
    assert {("launch",), ("sandbox", "up"), ("sandbox", "break", "drop")} <= set(found)


def test_a_mistyped_command() -> None:
    """A typing mistake gets the nearest command and an exit code of its own."""
    ran = aboard("chekc")
    assert ran.code == 3
    assert "did you mean 'check'?" in ran.stderr


def test_a_mistyped_subject() -> None:
    """So does one in --only, before any node is dialled."""
    ran = aboard("check", "--only", "reech", "localhost")
    assert ran.code == 3
    assert "did you mean 'reach'?" in ran.stderr


def test_sync_without_nodes_says_how_to_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody types it to copy nothing."""
    monkeypatch.chdir(tmp_path)
    ran = aboard("sync")
    assert ran.code == 3
    assert "no node is named, and there is no aboard.yaml in this directory" in ran.stderr
    assert "aboard sync --on gpu01 --on gpu02" in ran.stderr


def test_a_host_sees_the_environment_of_an_aboard_that_is_called_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`venv/bin/aboard sandbox exec -- python` finds that Python; an activated one comes first."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    environment = _build_terminal_environment()
    assert (environment["VIRTUAL_ENV"], environment["PATH"].split(":")[0]) == (str(tmp_path), f"{tmp_path}/bin")
    assert "PATH" not in _build_terminal_environment(active=False)
    monkeypatch.setenv("CONDA_PREFIX", sys.base_prefix)
    assert _build_terminal_environment().get("CONDA_PREFIX") == sys.base_prefix


def test_options_of_a_fault_may_stand_before_its_name() -> None:
    """`break --name other drop` means the same as `break drop --name other`."""
    ran = aboard("sandbox", "break", "--name", "nowhere", "drop", "--node", "n2")
    assert "No such option" not in ran.stderr
    assert "nowhere" in ran.stderr
    assert "drop " in aboard("sandbox", "break", "--list").stdout


def test_what_check_could_not_test_has_not_passed() -> None:
    """One machine has no network between nodes: that is said, exit code 0, with --strict 1, and JSON has it."""
    ran = aboard("check", "localhost", "--only", "network")
    assert (ran.code, "fine network" in ran.stdout) == (0, False)
    assert "untested network: there is only one node" in ran.stdout
    told = aboard("check", "localhost", "--only", "network", "--json", "--strict")
    subject = json.loads(told.stdout)["subjects"]["network"]
    assert (told.code, subject["status"], subject["reason"]) == (1, "not tested", "there is only one node")


def test_check_without_nodes_says_that_it_checked_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first line, with how to name nodes; not where this machine was named."""
    monkeypatch.chdir(tmp_path)
    ran = aboard("check", "--only", "reach")
    first = "note: checked this machine only; to check a cluster, pass its nodes: `aboard check gpu01 gpu02`"
    assert (ran.code, ran.stdout.splitlines()[0]) == (0, first)
    assert "this machine only" not in aboard("check", "localhost", "--only", "reach").stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("launch train.py --lr 1", "launch -- train.py --lr 1"),
        ("launch n1 n2 train.py --lr 1", "launch n1 n2 -- train.py --lr 1"),
        (
            "launch 'gpu[01-04]' --ranks 2 jobs/train.py --name 'a b'",
            "launch 'gpu[01-04]' --ranks 2 -- jobs/train.py --name 'a b'",
        ),
        ("launch --env-file jobs/env n1 ./run.sh -v", "launch --env-file jobs/env n1 -- ./run.sh -v"),
        ("launch -d torchrun --nproc-per-node 2 train.py", "launch -d -- torchrun --nproc-per-node 2 train.py"),
        ("launch n1 -m pkg.train --lr 1", "launch n1 -m -- pkg.train --lr 1"),
        ("launch conf/two.yaml train.py", "launch conf/two.yaml -- train.py"),
        ("launch n1 n2", "launch n1 n2 -- train.py"),
        ("launch", "launch -- train.py"),
    ],
)
def test_a_launch_without_dashes_shows_the_line_with_them(typed: str, meant: str) -> None:
    """The whole line, with `--` where the command begins, ready to be pasted; no option of the script is looked at."""
    ran = aboard(*shlex.split(typed))
    assert (ran.code, "[launch-command]" in ran.stderr) == (3, True)
    assert ran.stderr.endswith(f"  fix  aboard {meant}\n")


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ("NODE_RANK=1 WORLD_SIZE=2 MASTER_ADDR=n1", "NODE_RANK=1, WORLD_SIZE=2, MASTER_ADDR=n1 is set here"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=n1", "WORLD_SIZE=2, MASTER_ADDR=n1 is set here"),
        ("NNODES=2", "NNODES=2 is set here"),
        ("PET_NNODES=2 PET_NODE_RANK=0", "PET_NNODES=2 is set here"),
        pytest.param("PET_NNODES=1:4", "PET_NNODES=1:4 is set here", marks=pytest.mark.ci),
        pytest.param("PET_NODE_RANK=3", "PET_NODE_RANK=3 is set here", marks=pytest.mark.ci),
        ("NNODES=1 NODE_RANK=0 WORLD_SIZE=1 MASTER_ADDR=n1", ""),
        ("WORLD_SIZE=8 LOCAL_RANK=0 MASTER_ADDR=n1", ""),
        pytest.param("WORLD_SIZE=8", "", marks=pytest.mark.ci),
        pytest.param("NNODES=x", "", marks=pytest.mark.ci),
    ],
)
def test_a_launch_in_a_pod_never_trains_a_world_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str, refused: str
) -> None:
    """The platform starts the command on every node: without named nodes it is refused, and --alone runs it here."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "NNODES",
        "NODE_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "RANK",
        "LOCAL_RANK",
        "PET_NNODES",
        "PET_NODE_RANK",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, _, value in (each.partition("=") for each in variables.split()):
        monkeypatch.setenv(name, value)
    ran = aboard("launch", "--dry-run", "--", "true")
    assert (ran.code, "[launch-alone]" in ran.stderr) == ((3, True) if refused else (0, False))
    if refused:
        assert f"  {refused}, but no node is named" in ran.stderr
        assert "aboard launch --alone --dry-run -- true    # runs on this machine alone" in ran.stderr
        assert aboard("launch", "--alone", "--dry-run", "--", "true").code == 0
        assert aboard("launch", "localhost", "--dry-run", "--", "true").code == 0


@pytest.mark.ci
def test_a_login_node_is_no_node_unless_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that names no node is refused there without --alone, and a check doesn't succeed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm = SlurmStandIns(tmp_path / "bin", monkeypatch)
    slurm.put("scontrol", 'echo "Node $4 not found"; exit 1')
    slurm.put("sbatch", "")
    launch = ("launch", "--dry-run")
    for words, code in (
        (launch, 2),
        ((*launch, "--alone"), 0),
        ((*launch, "localhost"), 0),
        (("check", "--only", "host"), 2),
    ):
        ran = aboard(*words, *(("--", "true") if words[0] == "launch" else ()))
        assert ran.code == code, (words, ran.stdout, ran.stderr)
        assert "host-login-node" in ran.stdout + ran.stderr


def test_files_with_a_typing_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script, a log or a file of variables that is nearly there is named."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "run.log", "vars.env"):
        (tmp_path / name).write_text("")
    mistakes = {
        "train.py": ("launch", "--", "tarin.py"),
        "run.log": ("why", "--log", "rnu.log"),
        "vars.env": ("launch", "--env-file", "var.env", "--", "train.py"),
    }
    for name, argv in mistakes.items():
        ran = aboard(*argv)
        assert (ran.code, f"fix  did you mean '{name}'?" in ran.stderr) == (3, True), ran.stderr


def test_a_broken_file_shows_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All errors of a file at once, each with its place and what to write."""
    (tmp_path / "aboard.yaml").write_text("cluster:\n  nodes: [n1]\n  slot: 8\n  prot: 22\n")
    monkeypatch.chdir(tmp_path)
    ran = aboard("check")
    assert ran.code == 3
    assert "aboard.yaml:3:3" in ran.stderr
    assert "did you mean 'slots'?" in ran.stderr
    assert "aboard.yaml:4:3" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (
            ["train", "sft.yaml", "n[1-2]", "--set", "train.max_steps=2"],
            "train sft.yaml 'n[1-2]' --set train.max_steps=2",
        ),
        (["launch", "--", "train.py", "--name", "it's"], """launch -- train.py --name 'it'"'"'s'"""),
        (
            ["train", "--env", "HF_TOKEN=abc=", "--env=A=1", "--env=MY_KEY=k"],
            "train --env HF_TOKEN --env=A=1 --env=MY_KEY",
        ),
        (["train", "--set", "cluster.env.HF_TOKEN=abc"], "train --set 'cluster.env.HF_TOKEN=…'"),
        (["launch", "--", "run.sh", "--env", "HF_TOKEN=abc"], "launch -- run.sh --env HF_TOKEN=abc"),
    ],
)
def test_a_command_can_be_typed_again(argv: list[str], typed: str) -> None:
    """Quoted for a shell, with all of its options; our own options leave out the values of secrets."""
    assert format_typed_command(argv) == f"aboard {typed}"


def test_a_refused_wrapper_shows_the_typed_line_without_it_and_without_secrets() -> None:
    """The nodes and options are those before `--`."""
    ran = aboard("launch", "n1", "n2", "--env", "HF_TOKEN=abc", "--check", "none", "--", "nohup", "torchrun", "x.py")
    assert ran.code == 3
    assert "aboard launch n1 n2 --env HF_TOKEN --check none -d -- torchrun x.py" in " ".join(ran.stderr.split())
    assert "abc" not in ran.stderr


@pytest.mark.ci
def test_a_run_in_the_background_holds_no_stream_of_the_terminal() -> None:
    """Data that was prepared in worker processes leaves a helper of multiprocessing; it ends with the command."""
    script = """
import multiprocessing.resource_tracker, os, sys
from aboard.engine.background_run import leave_resource_tracker
multiprocessing.resource_tracker.ensure_running()
if os.fork() == 0:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1), os.dup2(null, 2)
    leave_resource_tracker()
    sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The child waits for the end of its stdin; what it prints to has ended before.
        ended, _, _ = select.select([process.stdout], [], [], 20 * slowness())
        process.stdin.close()
        assert ended
        assert process.stdout.read() == b""


@pytest.mark.ci
def test_a_launch_dials_before_the_rest_of_the_program_loads() -> None:
    """The checks, the views and YAML are imported in a thread, while ssh connects; launchers' flags only for those."""
    script = (
        "import sys, aboard.commands.command_line, aboard.commands.launch.command\n"
        "late = ('rich', 'yaml', 'pydantic', 'aboard.doctor', 'aboard.engine.launch_run')\n"
        "print([name for name in sys.modules if name.startswith(late)])\n"
        "import aboard.commands.launch.launch_modes\n"
        "print([name for name in sys.modules if name.startswith('aboard.core.launchers')])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n[]\n"


@pytest.mark.ci
def test_a_batch_script_says_that_its_time_is_over(tmp_path: Path) -> None:
    """Slurm's signal before the time limit stops a command that has no run yet, with the reason."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "aboard", "why", "--log", str(pipe)]
    with (
        subprocess.Popen(
            command, env={**os.environ, "SLURM_JOB_ID": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        pipe.open("w"),
    ):  # once the command reads
        process.send_signal(signal.SIGUSR1)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "stopped: the Slurm job reaches its time limit" in said


def test_status_of_a_run_whose_nodes_are_being_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a conductor, which does not serve requests before the ranks start: the run is not over."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = Runs.of(os.environ).open_or_create("20261116-1950-calm-crane")
    claim = run.claim()
    try:
        shown = aboard("status", run.id)
    finally:
        claim.release()
    assert shown.code == 0
    assert "running" in shown.stdout


@pytest.mark.parametrize(
    ("end", "state", "explained"),
    [
        ({"code": 0, "why": "it called no launcher", "monitored": False}, "not monitored", "nothing wrong"),
        ({"code": 127, "why": "the script on n1 ended with exit code 127"}, "failed", "capture-after"),
    ],
)
def test_the_end_of_a_script_is_that_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: dict[str, Any], state: str, explained: str
) -> None:
    """Status and `why` agree: one without ranks never finished, and one that failed after its run has failed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = Runs.of(os.environ).open_or_create("20261116-1950-calm-crane")
    record = Record.open(run, ranks=1)
    if end["code"]:
        record.event(made_event("finished", node="", at=1.0, code=0, why="all ranks ended"))
        record.write_findings([build_late_failure(run.id, "n1", "ended with exit code 127")])
    record.event(made_event("finished", node="", at=2.0, **end))
    record.close()
    assert json.loads(aboard("status", run.id, "--json").stdout)["runs"][0]["state"] == state
    assert explained in aboard("why", run.id).stdout


def test_values_of_variables_are_found_in_a_command_line() -> None:
    """After --env and --set, joined or apart, in bytes; neither names nor the program's own arguments."""
    words = ["aboard", "launch", "--env", "A=é=1", "--env=B=2", "--set", "cluster.env.C=3", "--set", "train.seed=4"]
    words += ["--set=data.token=5", "--env", "D", "--", "train.py", "--env", "E=6"]
    line = "\0".join(words).encode()
    assert [line[at : at + size].decode() for at, size in find_values(words)] == ["é=1", "2", "3", "5"]


def test_a_pipe_gets_no_line_breaks_of_ours_unless_columns_says_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/scripting.md promises, so that grep finds a sentence whole."""
    sentence = "Workers started with multiprocessing.set_start_method('spawn') inherit no locks."
    monkeypatch.delenv("COLUMNS", raising=False)
    assert sentence in aboard("why", "hang-lock").stdout
    monkeypatch.setenv("COLUMNS", "60")
    narrow = aboard("why", "hang-lock").stdout
    assert sentence not in narrow
    assert sentence in " ".join(narrow.split())


def test_a_sign_that_the_encoding_lacks_is_written_out() -> None:
    """As an escape, instead of a traceback."""
    source = io.BytesIO()
    ascii_text = io.TextIOWrapper(source, "ascii", write_through=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["aboard", "why", "hang-lock"])
        patch.setattr(sys, "stdout", ascii_text)
        with pytest.raises(SystemExit):
            main()
    assert source.getvalue().startswith(rb"\u2717 hang-lock ")
