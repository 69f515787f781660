"""Leftovers: what the agent finds among real processes, what is ended, and what is said of it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import wait_until

from aboard.agent import process_tree, run_directory
from aboard.agent.inspect import leftover_runs
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import ProbeRequest
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.host.leftovers import (
    END_LEFTOVERS,
    LEFTOVERS,
    Leftovers,
    StrayRank,
    parse_leftovers,
    terminate_leftovers,
)
from aboard.doctor.host.subject import SUBJECT

CLUSTER = Cluster(nodes=(Node(name="n1"), Node(name="n2")))
MET = ReachedNode(hostname="", user="", address="", python="", round_trip=0.01, clock_offset=0.0)
# Prints the number of a grandchild that has lost its parent.
ORPHAN = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execvp("sleep", ["sleep", "3600"])
    os._exit(0)
"""


def _facts(**outcomes: Any) -> Facts:
    return Facts(cluster=CLUSTER, contacts={"n1": MET, "n2": MET}, outcomes=outcomes)


def _orphan(**env: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(done.stdout)


@pytest.fixture
def run() -> str:
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Numbers of processes that end with the test."""
    found: list[int] = []
    yield found
    process_tree.send_signal(found, signal.SIGKILL)


def _wait_until_gone(pid: int) -> None:
    wait_until(lambda: pid not in process_tree.read_parents(), 5)


def test_a_process_without_a_supervisor_is_found_and_ended_by_run_id(run: str, orphans: list[int]) -> None:
    """Only the runs that are named are ended, and only by their id."""
    mine, other = _orphan(ABOARD_RUN_ID=run), _orphan(ABOARD_RUN_ID=f"{run}-b")
    orphans += [mine, other]
    found = leftover_runs.find_leftovers()["runs"]
    assert found[run] == {"pids": [mine], "what": "sleep 3600"}
    assert leftover_runs.clear_leftovers([run]) == {"ended": 1, "left": []}
    _wait_until_gone(mine)
    assert leftover_runs.find_leftovers()["runs"][f"{run}-b"]["pids"] == [other]


MARKED = f"""
import sys
from aboard.agent import process_tree
process_tree.mark_process(sys.argv[1])
{ORPHAN.replace('os.execvp("sleep", ["sleep", "3600"])', 'os.execve("/bin/sleep", ["sleep", "3600"], {})')}
"""


def _orphan_without_environment(run: str) -> int:
    done = subprocess.run([sys.executable, "-c", MARKED, run], stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


def test_a_process_with_an_emptied_environment_is_found_by_its_mark(run: str, orphans: list[int]) -> None:
    """It is named after its run while that has a directory, and ended by that name or by the mark's."""
    first = _orphan_without_environment(run)
    orphans.append(first)
    os.utime(run_directory.make_directory(run), (1, 1))
    assert leftover_runs.find_leftovers()["runs"][run]["pids"] == [first]
    assert leftover_runs.clear_leftovers([run]) == {"ended": 1, "left": []}
    second = _orphan_without_environment(run)
    orphans.append(second)
    names = [name for name, left in leftover_runs.find_leftovers()["runs"].items() if second in left["pids"]]
    assert [name.partition("-")[0] for name in names] == ["marked"]
    assert leftover_runs.clear_leftovers(names) == {"ended": 1, "left": []}
    _wait_until_gone(second)


def test_a_run_with_a_supervisor_is_left_alone(run: str, orphans: list[int]) -> None:
    """Whoever answers in the run's directory keeps it; that it stopped answering makes it a leftover."""
    orphans.append(_orphan(ABOARD_RUN_ID=run))
    directory = run_directory.make_directory(run)
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind(f"{directory}/{run_directory.SOCKET}")
        supervisor.listen(8)
        assert run not in leftover_runs.find_leftovers()["runs"]
        assert leftover_runs.clear_leftovers([run]) == {"ended": 0, "left": []}
    found = leftover_runs.find_leftovers()
    assert run in found["runs"]
    assert run in found["places"]
    assert leftover_runs.clear_leftovers([run])["ended"] == 1
    assert run not in run_directory.list_runs()


def test_a_supervisor_that_is_about_to_listen_is_waited_for(run: str) -> None:
    """A new directory without a socket belongs to a run that begins; an old one to nobody."""
    directory = run_directory.make_directory(run)
    try:
        assert run not in leftover_runs.find_leftovers()["places"]
        os.utime(directory, (1, 1))
        assert run in leftover_runs.find_leftovers()["places"]
    finally:
        run_directory.remove_directory(directory)


def test_a_question_of_a_check_is_no_leftover(orphans: list[int]) -> None:
    """As long as its agent lives; a mark whose agent is gone is one."""
    orphans.append(_orphan(ABOARD_RUN_ID="ask-999999999-1"))
    assert "ask-999999999-1" in leftover_runs.find_leftovers()["runs"]
    assert leftover_runs.clear_leftovers(["ask-999999999-1"])["ended"] == 1
    # What an agent is known by is on its command line.
    line = "print(1, flush=True); input()  # aboard: python"
    with subprocess.Popen(
        [sys.executable, "-ISc", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline()
        orphans.append(_orphan(ABOARD_RUN_ID=f"ask-{agent.pid}-1"))
        assert f"ask-{agent.pid}-1" not in leftover_runs.find_leftovers()["runs"]


def test_ranks_of_other_launchers_are_told_and_never_ended(orphans: list[int]) -> None:
    """By RANK and MASTER_ADDR; one of the two alone is nothing."""
    rank = _orphan(RANK="0", MASTER_ADDR="n1")
    orphans += [rank, _orphan(RANK="0")]
    strays = {pid: what for pid, _orphan_, what in leftover_runs.find_leftovers()["strays"]}
    assert strays[rank] == "sleep 3600"
    assert orphans[1] not in strays


def test_the_environment_stays_on_the_node(run: str, orphans: list[int]) -> None:
    """Of what a process has in it only the run id leaves, of its arguments only the script's name."""
    orphans.append(_orphan(ABOARD_RUN_ID=run, RANK="0", MASTER_ADDR="secret-host", KEY_OF_SOMETHING="a secret"))
    assert "secret" not in str(leftover_runs.find_leftovers())


FOUND = {
    "runs": {"run-7": {"pids": [11, 12], "what": "python3 train.py"}},
    "places": ["run-7", "run-8"],
    "strays": [[21, True, "python3 a.py"], [22, False, "python3 b.py"]],
}


def test_what_is_said_of_it() -> None:
    """Running leftovers and orphans warn, directories and ranks that have a launcher are worth a line."""
    facts = _facts(**{LEFTOVERS.name: {"n1": parse_leftovers(FOUND), "n2": Leftovers()}})
    findings = SUBJECT.judge(facts)
    assert [(finding.code, finding.severity, finding.nodes) for finding in findings] == [
        ("host-leftovers", Severity.WARN, ("n1",)),
        ("host-leftover-files", Severity.INFO, ("n1",)),
        ("host-other-ranks", Severity.WARN, ("n1",)),
        ("host-other-ranks", Severity.INFO, ("n1",)),
    ]
    assert "2 processes from run run-7" in findings[0].seen
    assert "run-8" in findings[1].seen
    assert "run-7" not in findings[1].seen
    assert "kill 21 " in findings[2].fix


def test_the_end_is_asked_of_those_that_have_some() -> None:
    """By run id, then they look again, and what was done is said."""
    script = terminate_leftovers(_facts(**{LEFTOVERS.name: {"n1": parse_leftovers(FOUND), "n2": Leftovers()}}))
    assert next(script) == {"n1": ProbeRequest(op="clear", fields={"runs": ["run-7", "run-8"]})}
    assert script.send({"n1": {"ended": 2, "left": []}}) == {"n1": ProbeRequest(op="leftovers")}
    with pytest.raises(StopIteration) as done:
        script.send({"n1": {"runs": {}, "places": [], "strays": FOUND["strays"]}})
    strays = (
        StrayRank(pid=21, orphan=True, what=Untrusted("python3 a.py")),
        StrayRank(pid=22, orphan=False, what=Untrusted("python3 b.py")),
    )
    assert done.value.value == {"n1": Leftovers(ended=2, strays=strays), "n2": Leftovers()}
    findings = SUBJECT.judge(_facts(**{LEFTOVERS.name: {}, END_LEFTOVERS.name: {"n1": Leftovers(ended=2)}}))
    assert [(finding.code, finding.severity) for finding in findings] == [("host-leftovers-ended", Severity.INFO)]


def test_nothing_to_end_asks_nobody() -> None:
    """A clean cluster, or one that wasn't looked at, is left in peace."""
    for outcomes in ({}, {LEFTOVERS.name: {"n1": Leftovers(), "n2": Unknown(why="x")}}):
        with pytest.raises(StopIteration):
            next(terminate_leftovers(_facts(**outcomes)))


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"runs": [], "places": 5, "strays": []},
        {"runs": {"r": {"pids": ["1; reboot"], "what": ""}}, "places": [], "strays": []},
        {"runs": {"r": {"pids": [-1], "what": ""}}, "places": [], "strays": []},
        {"runs": {}, "places": [], "strays": [[1, 2]]},
        {"runs": {}, "places": [], "strays": [["$(reboot)", True, ""]]},
        {"runs": {"\x1b[31m": {"pids": [1], "what": ""}}, "places": [], "strays": []},
        {"runs": {}, "places": ["../$(reboot)"], "strays": []},
    ],
)
def test_a_hostile_answer_is_unknown(reply: dict[str, Any]) -> None:
    """Numbers of processes and ids of runs get into commands, so they are such."""
    left = parse_leftovers(reply)
    assert isinstance(left, Unknown)
    (finding,) = SUBJECT.judge(_facts(**{LEFTOVERS.name: {"n1": left}}))
    assert (finding.code, finding.severity) == ("unknown-leftovers", Severity.WARN)


def test_words_of_a_node_are_fit_for_a_screen() -> None:
    """Escape codes are spelled out."""
    left = parse_leftovers({"runs": {"r1": {"pids": [1], "what": "\x1b[31m\n"}}, "places": [], "strays": []})
    (finding,) = SUBJECT.judge(_facts(**{LEFTOVERS.name: {"n1": left}}))
    assert finding.seen == r"1 process from run r1 is running without a supervisor: \x1b[31m\n, pid 1"
