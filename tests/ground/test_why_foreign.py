"""Trainings that torchrun or a plain script started on real hosts, and what a look from outside makes of them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from deadlines import wait_until
from launching import PYTHON, Launches, build_sandbox
from stalls import JOB

from aboard.commands.why.external_jobs import WATCH_SECONDS
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.host import Host

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_a")]

PORT = 29500
ENV = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "HF_TOKEN": "hf_notforyoureyes"}
# The second task stops itself, the other one waits for nothing.
STOPPED = (
    "import os, signal; os.environ['SLURM_PROCID'] == '1' and os.kill(os.getpid(), signal.SIGSTOP); signal.pause()"
)
# Ends what carries the token, and tells who that was.
LEFT = "for each in $(grep -lz ^HF_TOKEN=hf_notforyoureyes /proc/[0-9]*/environ 2>/dev/null); do echo $each;"
LEFT += " kill -9 $(echo $each | cut -d/ -f3); done"


@pytest.fixture(scope="module")
def two() -> Iterator[Launches]:
    """Two nodes, on which nothing of ours is started."""
    with build_sandbox("foreign", nodes=2, slots=2) as made:
        launches = Launches(made, slots=2)
        launches.put("why_job.py", JOB.read_text())
        yield launches


@contextmanager
def torchrun(two: Launches, **env: str) -> Iterator[None]:
    """Two ranks a node, each node's launcher by itself, as people do it by hand."""
    words = [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
    words += [f"--master-addr={two.box.nodes[0].address}", f"--master-port={PORT}"]
    with ExitStack() as stack:
        for number, host in enumerate(two.box.nodes):
            stack.enter_context(started(two, host, [*words, f"--node-rank={number}", "why_job.py"], env))
        yield


@contextmanager
def by_hand(two: Launches, **env: str) -> Iterator[None]:
    """One rank a node, with torch's four variables and no launcher."""
    with ExitStack() as stack:
        for number, host in enumerate(two.box.nodes):
            own = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_PORT": str(PORT), **env}
            own["MASTER_ADDR"] = str(two.box.nodes[0].address)
            stack.enter_context(started(two, host, [PYTHON, "why_job.py"], own))
        yield


@contextmanager
def started(two: Launches, host: Host, words: list[str], env: dict[str, str]) -> "Iterator[subprocess.Popen[Any]]":
    process = host.popen(
        words,
        cwd=two.folder,
        env={**ENV, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        # torchrun gives each rank a session of its own, and does not outlive a SIGKILL to end them.
        wait_until(lambda: host.run(["sh", "-c", LEFT]).stdout == "", 30, "nothing is left of it")


def asked(two: Launches, *words: str) -> dict[str, Any]:
    """What `aboard why` says, as JSON; nothing of it may hold the token."""
    done = two.aboard("why", "--json", *words)
    assert ENV["HF_TOKEN"] not in done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr}
    return {**told, "exit": done.returncode}


def verdict(two: Launches, code: str, seconds: float) -> dict[str, Any]:
    """Asks until the verdict has this code: jobs need a while to come to their trouble."""
    last: dict[str, Any] = {}

    def named() -> bool:
        nonlocal last
        last = asked(two, "--nodes", "n[1-2]")
        return [each["code"] for each in last.get("findings", ())][:1] == [code]

    wait_until(named, seconds, lambda: last)
    assert last["exit"] == 2
    found: dict[str, Any] = last["findings"][0]
    return found


def test_a_rank_of_torchrun_that_does_not_come(two: Launches) -> None:
    """The rank in a lock is named, with its node and the line, while the others wait in an all_reduce."""
    with torchrun(two, TROUBLE="lock", TROUBLE_RANK="3", TROUBLE_STEP="5"):
        found = verdict(two, "hang-lock", 90)
    assert (found["nodes"], found["ranks"]) == (["n2"], [3])
    assert "why_job.py:" in found["seen"]
    assert "3 other ranks" in found["seen"]
    assert "aboard logs" not in found["fix"]


@pytest.mark.nightly
def test_a_training_that_goes_on(two: Launches) -> None:
    """Ranks that are seen in a collective at each look are no alarm while bytes go: that is said before all looks."""
    with torchrun(two, STEP_SECONDS="0", SIZE="100000"):
        told: dict[str, Any] = {}

        def training() -> bool:
            nonlocal told
            told = asked(two, "--nodes", "n1", "n2")
            return any("collective at why_job" in each["where"] for each in told.get("places", ()))

        wait_until(training, 90, lambda: told)
    assert (told["exit"], told["missing"], told["world"]) == (0, [], 4)
    assert [each for each in told["findings"] if each["severity"] != "info"] == []
    assert told["seconds"] < WATCH_SECONDS


@pytest.mark.nightly
def test_a_store_that_is_dropped(two: Launches) -> None:
    """Ranks that a script started can't reach the store: the way, the ranks and the firewall's node are told."""
    host = two.box.nodes[0]
    with inject_temporarily(two.box, host, FirewallDrop(ports=str(PORT))), by_hand(two):
        found = verdict(two, "init-store-dropped", 90)
    assert (found["nodes"], found["ranks"]) == (["n1"], [1])


def test_launchers_that_do_not_meet(two: Launches) -> None:
    """With the port closed torchrun starts no rank at all; its launchers are looked at in their place."""
    host = two.box.nodes[0]
    with inject_temporarily(two.box, host, FirewallDrop(ports=str(PORT))), torchrun(two):
        found = verdict(two, "init-store-dropped", 60)
    assert found["nodes"] == ["n1"]
    assert found["seen"].startswith("launcher 1 on n2 gets no reply from")


def test_a_stopped_process_of_this_machine(two: Launches) -> None:
    """By its number alone, whatever it is: stopped, with the command that lets it go on."""
    head = two.box.head
    script = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    process = head.popen([PYTHON, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with process.stdout as said:
            pid = said.readline().strip()
        told = asked(two, "--pid", pid)
    finally:
        process.kill()
        process.wait()
    found = told["findings"][0]
    assert (told["exit"], found["code"]) == (2, "run-rank-stopped")
    assert f"kill -CONT {pid}" in found["fix"]


def test_what_can_not_be_looked_at(two: Launches) -> None:
    """No such process, somebody else's, and no training at all: each has its name and what to type."""
    assert "why-no-process" in asked(two, "--pid", "4194000")["error"]
    assert "why-not-permitted" in asked(two, "--pid", "1")["error"]
    none = asked(two, "--nodes", "n[1-2]")
    assert "why-no-training" in none["error"]
    assert none["exit"] == 3


@pytest.mark.nightly
def test_ranks_that_were_found_nowhere(two: Launches) -> None:
    """Asked on one of its two nodes, half of the training is said to be missing."""
    with torchrun(two, TROUBLE="sleep", TROUBLE_RANK="all", TROUBLE_STEP="5"):
        wait_until(lambda: asked(two, "--nodes", "n[1-2]").get("world") == 4, 90, "ranks are there")
        told = asked(two, "--nodes", "n1")
    assert told["missing"] == [2, 3]
    assert any(each["code"] == "why-ranks-missing" for each in told["findings"])


def test_two_trainings_on_one_node(two: Launches) -> None:
    """They are told apart by where they meet: the newest is looked at, the other is listed, and can be asked for."""
    words = [PYTHON, "-c", "import signal; signal.pause()"]
    first, second = ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": port} for port in ("7001", "7002"))
    node = two.box.nodes[0]
    with started(two, node, words, first):
        wait_until(lambda: asked(two, "--nodes", "n1").get("master") == ":7001", 30, "the first is there")
        with started(two, node, words, second):
            wait_until(lambda: asked(two, "--nodes", "n1").get("master") == ":7002", 30, "the second is there")
            (other,) = asked(two, "--nodes", "n1")["findings"]
    assert (other["code"], other["severity"], other["nodes"]) == ("why-other-run", "info", ["n1"])


def test_a_run_of_our_own_is_told_to_be(two: Launches) -> None:
    """Much more is known of it than can be seen from outside: its name is told, and how to ask."""
    # A look at its stack is a signal, which ends a pause.
    two.put("rank.py", "import signal\nwhile True:\n    signal.pause()\n")
    told: dict[str, Any] = {}

    def known() -> bool:
        nonlocal told
        told = asked(two, "--nodes", "n1")
        return "why-own-run" in told.get("error", "")

    with two.going("launch", "--include", "n1", "--", "rank.py") as going:
        wait_until(known, 60, lambda: f"{told}\n{going.said}")
        two.aboard("stop", two.newest(), "--now")
        wait_until(lambda: not two.orphans(two.newest()), 30, "nothing is left of it")


def test_tasks_of_srun(box_name: str) -> None:
    """Slurm's own numbers tell them; a task that is stopped is named with its node."""
    words = ["srun", "-N2", "-n2", PYTHON, "-c", STOPPED]
    with Sandbox.up(box_name, nodes=2, slurm=True, temporary=True) as box:
        process = box.head.popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            found = verdict(Launches(box), "run-rank-stopped", 60)
            told = asked(Launches(box), "--nodes", "n[1-2]")
        finally:
            process.kill()
            process.wait()
    assert found["ranks"] == [1]
    assert found["nodes"] == [told["ranks"]["1"]["node"]]
    assert (told["world"], told["missing"]) == (2, [])
