"""Runs from a login node: submitted as jobs of a real Slurm and followed; homes are not shared."""

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import wait_until
from launching import Launches, build_sandbox

from aboard.sandbox import Sandbox

# On one worker: what the fixture sets up is dear.
pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-submit")]

REQUEST = """\
cluster:
  slurm: {nodes: 2, gpus_per_node: 2, time: 10, extra: [--exclusive, --comment=my tests, --job-name=my job]}
"""
FAILS = """\
import os, time
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has {os.environ['HF_TOKEN']}", flush=True)
if os.environ["RANK"] == "3":
    raise SystemExit(7)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Two nodes with Slurm that tests share: leave no job."""
    with build_sandbox("slurm-submit", nodes=2, slurm=True) as made:
        yield made


@pytest.fixture
def login(cluster: Sandbox) -> Iterator[Launches]:
    """The head is the login node; jobs start in the directory that all hosts share."""
    launches = Launches(cluster)
    launches.put("aboard.yaml", REQUEST)
    launches.put("fails.py", FAILS)
    launches.put("waits.py", "import time\nprint('here', flush=True)\ntime.sleep(300)\n")
    yield launches
    cluster.head.run(["scancel", "--user=crew"])
    wait_until(lambda: not cluster.head.run(["squeue", "--noheader"]).stdout, 40)


def test_a_run_is_submitted_and_followed_to_its_end(login: Launches) -> None:
    """State, output and summary of the job are shown, and its exit code is the failed rank's; no secret is stored."""
    done = login.aboard("launch", "--env", "HF_TOKEN=hunter-secret", "--", "fails.py")
    assert done.returncode == 7, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    run, _, script = first.partition(": submitted job ")
    assert "for 2 nodes" in script
    assert any(line.endswith("is running on n[1-2]") for line in lines)
    assert any("of 4 has [secret]" in line for line in lines)
    assert any(line.startswith("block run-exited n2 seen: rank 3 on n2") for line in lines)
    assert lines[-1].endswith("failed with exit code 7")
    # Only the node has the record.
    (following,) = (line.removeprefix("next ") for line in lines if line.startswith("next srun") and " logs " in line)
    assert "of 4 has [secret]" in login.box.head.run(shlex.split(following, comments=True)).stdout
    text = login.read(run, "job.sh")
    assert f"launch --run {run} --allowed aboard.yaml=" in text
    assert " --env HF_TOKEN -- fails.py" in text
    assert "hunter-secret" not in text
    assert json.loads(login.read(run, "slurm.json"))["script"].endswith(f"{run}/job.sh")


def test_ctrl_c_ends_the_view_and_not_the_run(login: Launches) -> None:
    """The command says how to look again and how to stop; nothing of it stays on the login node."""
    with login.going("launch", "--", "waits.py") as going:
        wait_until(lambda: "here" in going.said, 40, lambda: going.said)
        (ours,) = (
            pid for pid in login.box.head.pids() if read_words(pid)[-4:] == ["aboard", "launch", "--", "waits.py"]
        )
        os.kill(ours, signal.SIGINT)
        assert going.wait(20) == 130
        assert "no longer following; the job is not affected:" in going.said
        assert "aboard stop" in going.said
    assert login.box.head.run(["squeue", "--noheader", "--format=%T %j %k"]).stdout.startswith(
        "RUNNING my job my tests aboard:2"
    )
    assert "srun" not in login.box.head.run(["ps", "-u", "crew", "-o", "comm="]).stdout.split()
    waiting = login.aboard("launch", "--detach", "--", "waits.py")
    assert waiting.returncode == 0
    assert "submitted job" in waiting.stdout
    assert "aboard logs" in waiting.stdout


def test_a_terminal_shows_the_rank_table(login: Launches) -> None:
    """The conductor's progress reaches the login node through a step on the batch host."""
    inside = "stty cols 120 rows 40; exec timeout --signal=INT 60 aboard launch -- waits.py"
    screen = login.box.head.popen(["script", "-qfc", inside, "/shared/job/screen"], cwd=login.folder)
    try:
        wait_until(lambda: "4 ranks on 2 nodes" in read_file(login, "/shared/job/screen"), 40)
    finally:
        screen.kill()
        screen.wait()


def test_a_directory_that_the_nodes_lack_is_named(login: Launches) -> None:
    """Slurm itself only reports an odd exit code."""
    login.box.head.run(["mkdir", "-p", "/private/only-here"])
    login.box.head.run(["cp", "-r", "/shared/job/.", "/private/only-here"])
    done = login.box.head.run(
        ["aboard", "launch", "--allow-file", "--", "waits.py"], cwd="/private/only-here", timeout=120
    )
    assert done.returncode == 3
    assert "error [slurm-script-start]" in done.stderr
    assert "/private/only-here" in done.stderr


def test_a_refused_job_leaves_no_run(login: Launches) -> None:
    """The fix is one of Slurm's own commands; nothing was recorded."""
    before = login.aboard("status").stdout
    done = login.aboard("launch", "--set", "cluster.slurm.partition=nope", "--", "waits.py")
    assert done.returncode == 3
    assert "error [slurm-submit]" in done.stderr
    assert "sinfo --summarize" in done.stderr
    assert [line.split("\t")[0] for line in login.aboard("status").stdout.splitlines()] == [
        line.split("\t")[0] for line in before.splitlines()
    ]


def read_file(login: Launches, path: str) -> str:
    return login.box.head.run(["cat", path]).stdout


def read_words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:  # it has ended
        return []
