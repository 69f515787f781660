"""Scripts that start a launcher themselves: they run on the nodes, and their launcher becomes a run."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import slowness, wait_until
from launching import Launches, build_sandbox, count_ranks

from script_goldens import compare, load_goldens
from scripts import ScriptCases, Verdict, load_cases

pytestmark = pytest.mark.ground

# Ranks need no torch: importing it would take two seconds of a core in each.
SHOW = """
import os, sys
names = ("RANK", "WORLD_SIZE", "LEARNING", "NODE")
print("rank", *(os.environ.get(name, "-") for name in names), os.path.basename(os.getcwd()), *sys.argv[1:], flush=True)
sys.exit(int(sys.argv[-1]) if os.environ["RANK"] == "1" else 0)
"""
WAIT = "import time\nprint('waiting', flush=True)\nfor _ in range(600):\n    time.sleep(0.1)\n"
EVERYWHERE = """#!/bin/bash
set -e
echo "prepare $NODE_RANK of $NNODES"
export LEARNING=0.1 NODE=$(hostname)
cd sub
torchrun --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node $NPROC_PER_NODE \\
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT ../show.py --x 0
echo "after $?"
"""
REDIRECTED = """
torchrun --nnodes 2 show.py 0 2>&1 | tee train-$NODE_RANK.log
torchrun --nnodes 2 show.py 0 &> later-$NODE_RANK.log
echo "$NODE_RANK times over"
"""
FORGIVING = """
torchrun --nnodes 2 show.py 7 || true
echo "first over"
python -m torch.distributed.run --nnodes 2 show.py 0
echo "second over"
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Launches]:
    """Two nodes with one rank each."""
    with build_sandbox("scripts", nodes=2, slots=1) as made:
        launches = Launches(made)
        made.head.run(["mkdir", "-p", "/shared/job/sub"]).check_returncode()
        launches.put("show.py", SHOW)
        launches.put("wait.py", WAIT)
        yield launches


def test_a_script_prepares_on_every_node(two: Launches) -> None:
    """Ranks have what their node's script has set, start in its directory, and the lines after the launcher run."""
    two.put("run.sh", EVERYWHERE)
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code == 0, ran.said
    for rank, node in enumerate(("n1", "n2")):
        assert f"[script on {node}] prepare {rank} of 2" in ran.said
        assert f"rank {rank} 2 0.1 {node} sub --x 0" in two.aboard("logs", ran.run, "--rank", str(rank)).stdout
        assert f"[script on {node}] after 0" in ran.said
    captured, _, checked = ran.said.partition("captured torchrun on n[1-2] (run.sh line 6)")
    assert "checked n[1-2] in " in checked.partition("[rank")[0], captured + checked
    assert "[script on n2] prepare 1 of 2" in two.aboard("logs", ran.run, "--script").stdout
    assert two.orphans(ran.run) == two.orphans(f"{ran.run}.0") == {}


def test_ranks_are_printed_where_the_script_sends_its_launcher(two: Launches) -> None:
    """`| tee` and `&>` get the lines of their own node's ranks, as from the launcher; the screen shows each once."""
    two.put("run.sh", REDIRECTED)
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code == 0, ran.said
    logs = two.box.head.run(["sh", "-c", "cat later-*.log train-*.log"], cwd="/shared/job").stdout
    ranks = [f"rank {rank} 2 - - job 0" for rank in range(2)]
    assert logs.splitlines() == ranks * 2
    # Lines that differ in their numbers only are folded.
    assert ran.said.count("] rank ") == 2, ran.said
    for rank, line in enumerate(ranks):
        assert f"[script on n{rank + 1}] {line}" not in ran.said
        assert two.aboard("logs", ran.run, "--script").stdout.count(line) == 1
        assert f"[script on n{rank + 1}] {rank} times over" in ran.said


def test_a_failed_run_is_not_forgiven(two: Launches) -> None:
    """Two launchers in turn are two attempts; the exit code is the failed one's, though the script ignores it."""
    two.put("run.sh", FORGIVING)
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code == 7, ran.said
    assert "[script on n1] first over" in ran.said
    assert "[script on n1] second over" in ran.said
    assert [each["data"]["number"] for each in two.events(ran.run) if each["kind"] == "generation"] == [1, 2]
    assert ran.verdict["ranks"] == [1]


def test_two_launchers_at_once_are_refused(two: Launches) -> None:
    """They would share ports and devices."""
    two.put("run.sh", "torchrun --nnodes 2 wait.py &\ntorchrun --nnodes 2 wait.py &\nwait\n")
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code != 0
    assert "capture-parallel" in ran.said, ran.said
    assert two.orphans(ran.run) == two.orphans(f"{ran.run}.0") == {}


def test_nodes_whose_launchers_differ_are_named(two: Launches) -> None:
    """With both values."""
    two.put("run.sh", "torchrun --nnodes 2 show.py --rate 0.$NODE_RANK 0\n")
    ran = two.launch("--", "bash", "run.sh")
    assert "capture-differs" in ran.said, ran.said
    assert "0.0" in ran.said
    assert "0.1" in ran.said


def _read_words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]


def _interrupt(launches: Launches) -> None:
    """Ctrl-C for the launch on the head."""
    (ours,) = (pid for pid in launches.box.head.pids() if _read_words(pid)[-3:] == ["--", "bash", "run.sh"])
    os.kill(ours, signal.SIGINT)


def test_ctrl_c_before_the_launcher_runs_the_traps(two: Launches) -> None:
    """The view says which line the script is in; nothing is left."""
    two.put("run.sh", "trap 'echo cleaning up; exit 3' TERM\necho begins\n\nsleep 600\ntorchrun show.py\n")
    with two.going("launch", "--", "bash", "run.sh") as launch:
        wait_until(lambda: "run.sh line 4" in launch.said, 30, lambda: launch.said)
        run = two.newest()
        _interrupt(two)
        assert launch.wait(30) == 130
        assert "[script on n1] cleaning up" in launch.said
    assert two.orphans(f"{run}.0") == {}


def test_a_node_that_is_awaited_is_named(two: Launches) -> None:
    """Once the first node has called its launcher, the view says which line the script of another one is in."""
    two.put("run.sh", '[ "$NODE_RANK" = 0 ] ||\n  sleep 600\ntorchrun --nnodes 2 wait.py\n')
    with two.going("launch", "--", "bash", "run.sh") as launch:
        awaited = "n2 has called no launcher yet: `sleep 600` (run.sh line 2)"
        wait_until(lambda: awaited in launch.said, 30, lambda: launch.said)
        run = two.newest()
        _interrupt(two)
        assert launch.wait(30) == 130
    assert two.orphans(f"{run}.0") == {}


def test_a_script_that_runs_on_has_called_its_launcher(two: Launches) -> None:
    """The view says what it does after its launcher, and no longer that it has called none."""
    two.put("run.sh", "torchrun --nnodes 2 show.py 0\nsleep 600\n")
    with two.going("launch", "--", "bash", "run.sh") as launch:
        awaited = "runs on, after a launcher: `sleep 600` (run.sh line 2)"
        wait_until(lambda: awaited in launch.said, 60, lambda: launch.said)
        assert "has called no launcher yet: `sleep 600`" not in launch.said
        _interrupt(two)
        launch.wait(30)


def test_other_commands_know_a_run_without_ranks(two: Launches) -> None:
    """`aboard status` and `aboard why` say what it waits for, and `aboard stop` ends the script."""
    two.put("run.sh", "sleep 600\ntorchrun show.py\n")
    with two.going("launch", "--", "bash", "run.sh") as launch:
        wait_until(lambda: "run.sh line 1" in launch.said, 30, lambda: launch.said)
        run = two.newest()
        for command in ("status", "why"):
            assert "has called no launcher yet" in two.aboard(command, run).stderr
        assert two.aboard("stop", run).returncode == 0
        assert launch.wait(30) == 130
    assert two.orphans(f"{run}.0") == {}


def test_a_script_that_a_node_lacks_is_named_before_anything_runs(two: Launches) -> None:
    """With the command that sends it."""
    for host in (two.box.head, *two.box.nodes):
        host.run(["mkdir", "-p", "/private/own"]).check_returncode()
    for host in (two.box.head, two.box.host("n1")):
        host.run(["sh", "-c", "echo 'touch /shared/job/ran' > /private/own/run.sh"]).check_returncode()
    refused = two.box.head.run(["aboard", "launch", "n[1-2]", "--", "bash", "run.sh"], cwd="/private/own")
    assert refused.returncode == 2
    assert "/private/own/run.sh is missing on n2; n1 has it" in refused.stderr + refused.stdout
    assert two.box.head.run(["test", "-e", "/shared/job/ran"]).returncode == 1


def test_ctrl_c_during_the_run_ends_ranks_and_script(two: Launches) -> None:
    """Ranks first; the script's next line doesn't run."""
    two.put("run.sh", "trap 'echo cleaning up' EXIT\ntorchrun --nnodes 2 wait.py\necho more\n")
    with two.going("launch", "--grace", "2", "--", "bash", "run.sh") as launch:
        wait_until(lambda: count_ranks(launch.said, "waiting") == 2, 60, lambda: launch.said)
        run = two.newest()
        _interrupt(two)
        assert launch.wait(40) == 130
        assert "cleaning up" in launch.said
        assert "more" not in launch.said
    assert two.orphans(run) == two.orphans(f"{run}.0") == {}


def test_a_script_that_is_killed_ends_no_run(two: Launches) -> None:
    """The run goes on to its end, and the exit code says that the script was killed."""
    two.put("run.sh", "torchrun --nnodes 2 wait.py\n")
    with two.going("launch", "--", "bash", "run.sh") as launch:
        wait_until(lambda: count_ranks(launch.said, "waiting") == 2, 60, lambda: launch.said)
        run = two.newest()
        started = [each for each in two.events(run) if each["kind"] == "started"]
        assert len(started) == 2
        _interrupt(two)
        launch.wait(40)
    assert two.orphans(run) == {}


def test_a_launcher_that_got_through_is_ended_and_named(two: Launches) -> None:
    """With its command; it would have trained on this node alone."""
    two.put("run.sh", f"env -i {Path(sys.executable).parent}/torchrun --nnodes 2 show.py 0\n")
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code != 0
    assert "capture-escaped" in ran.said, ran.said
    assert "torchrun --nnodes 2 show.py 0" in ran.said
    status = two.aboard("status", ran.run).stdout
    assert "  failed  " in status
    assert "preflight" not in status


def test_a_script_that_fails_before_a_launcher(two: Launches) -> None:
    """Its exit code, and what to type; no preflight has refused it."""
    two.put("run.sh", "echo nothing\nexit 5\n")
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code == 5, ran.said
    assert "capture-none" in ran.said
    assert "  failed  " in two.aboard("status", ran.run).stdout


def test_a_script_without_ranks_is_not_monitored(two: Launches) -> None:
    """Such as a Ray driver: its exit code, a status of its own, and a note at its start; not if --capture was typed."""
    two.put("run.sh", "echo driving; sleep 3\n")
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code == 0, ran.said
    assert ran.said.count("note: the script on n1 is not monitored until it calls a launcher\n") == 1
    assert ran.said.endswith("not monitored: the script on n1 ended with exit code 0, and called no launcher\n")
    assert "  not monitored  " in two.aboard("status", ran.run).stdout
    two.put("run.sh", "echo driving\n")
    assert "capture-none" in two.launch("--capture", "--", "bash", "run.sh").said


def test_a_script_that_fails_after_its_run_has_failed(two: Launches) -> None:
    """Exit code, status, `why` and page agree, although all ranks succeeded; its PYTHONPATH held in the preflight."""
    two.box.head.run(["mkdir", "-p", "/shared/job/src2/mypkg"]).check_returncode()
    two.put("src2/mypkg/run.py", f"import mypkg.run\n{SHOW}")
    two.put("run.sh", "export PYTHONPATH=src2:$PYTHONPATH\ntorchrun --nnodes 2 -m mypkg.run 0\n./evaluate.sh\n")
    ran = two.launch("--", "bash", "run.sh")
    assert ran.code == 127, ran.said
    assert ran.verdict["code"] == "capture-after"
    assert "  failed  " in two.aboard("status", ran.run).stdout
    assert "capture-after" in two.aboard("why", ran.run).stdout
    assert "capture-after" in two.aboard("report", ran.run, "--data").stdout


def test_a_dry_run_runs_no_line(two: Launches) -> None:
    """With --capture, it runs up to the launcher and shows the plan."""
    two.put("run.sh", "touch /shared/job/touched\ntorchrun --nnodes 2 show.py 0\n")
    dry = two.aboard("launch", "--dry-run", "--", "bash", "run.sh")
    assert "--capture" in dry.stdout
    assert two.box.head.run(["test", "-e", "/shared/job/touched"]).returncode == 1
    shown = two.aboard("launch", "--dry-run", "--capture", "--json", "--", "bash", "run.sh")
    assert shown.returncode == 0, shown.stderr
    assert '"show.py"' in shown.stdout
    assert two.box.head.run(["test", "-e", "/shared/job/touched"]).returncode == 0


def test_a_detached_script(two: Launches) -> None:
    """It reads nothing from the terminal, and ends by itself."""
    two.put("run.sh", "read line || echo no input\ntorchrun --nnodes 2 show.py 0\n")
    ran = two.launch("--detach", "--", "bash", "run.sh")
    assert ran.code == 0, ran.said
    wait_until(lambda: any(each["kind"] == "finished" for each in two.events(ran.run)), 30 * slowness())


def test_commands_that_people_type(two: Launches) -> None:
    """Ranks get the program, the directory and the variables that the script's own launcher would give them."""
    cases = ScriptCases(two.box)
    # Preparing a virtual environment costs as much as two launches.
    outcomes = {case.name: cases.run(case) for case in load_cases(quick=True) if not case.prepare}
    assert len(outcomes) == 5
    assert {name: outcome.seen for name, outcome in outcomes.items() if outcome.verdict is not Verdict.RIGHT} == {}


def test_scripts_become_what_they_became_when_they_were_read(two: Launches) -> None:
    """The plan of the reader that preceded capture, or another one for a reason; nightly, the bench replays all."""
    cases = ScriptCases(two.box)
    goldens = [golden for golden in load_goldens("ssh") if golden.now.name in {"script", "script in script"}]
    compared = {golden.now.name: compare(cases, golden) for golden in goldens}
    assert {name: comparison.name for name, (comparison, _why) in compared.items()} == {
        "script": "BETTER",
        "script in script": "SAME",
    }, compared
