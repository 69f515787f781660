"""Attacks by a rank: code that runs with the user's rights on a node, and whatever it prints or kills."""

import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import wait_until
from launching import Launches, Ran

from aboard.agent import process_tree
from aboard.sandbox import Sandbox

# Rank 0 leaves a process that shows nothing of its run: a double fork in a new session with an emptied environment.
# Then it acts on the agents of its node, which it finds by what is on their command line.
ESCAPE = """
import os, signal, sys, time

def list_agents():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/stat", "rb") as stat:
                if b"\\0-ISc\\0" in line.read():
                    found[int(pid)] = int(stat.read().rpartition(b")")[2].split()[1])
        except OSError:
            pass
    return found

token, action = sys.argv[1:]
if os.environ["RANK"] == "0":
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", token], {})
    os.wait()
    time.sleep(1)
    supervisor = os.getppid()
    agents = list_agents()
    guard = agents[supervisor]
    bridges = [pid for pid in agents if pid not in (guard, supervisor)]
    victims = {
        "kill": [(guard, signal.SIGKILL), (supervisor, signal.SIGKILL)],
        "guard": [(guard, signal.SIGKILL)],
        "stop": [(guard, signal.SIGSTOP), (supervisor, signal.SIGKILL)],
        "all": [(pid, signal.SIGKILL) for pid in (*bridges, guard, supervisor)],
    }
    for pid, number in victims.get(action, ()):
        os.kill(pid, number)
time.sleep(600)
"""


class Escape:
    """A launch whose rank 0 attacks, and what is left of it on the nodes."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches
        self.token = f"escaped-{secrets.token_hex(6)}"
        launches.put("escape.py", ESCAPE)

    def launch(self, action: str) -> Ran:
        return self.launches.launch("--lease", "8", "--", "escape.py", self.token, action)

    def list_processes(self) -> list[int]:
        """The ranks and what they started."""
        return self._find(self.token)

    def list_escaped(self) -> list[int]:
        return self._find(f"time.sleep(600)\0{self.token}")

    def list_agents(self) -> list[int]:
        return self._find("\0-ISc\0")

    def _find(self, words: str) -> list[int]:
        return [pid for host in self.launches.box.nodes for pid in host.pids() if words in _read_command(pid)]

    def expect_clean(self) -> None:
        wait_until(lambda: not self.list_processes(), 10, lambda: f"the end of {self.list_processes()}")
        wait_until(lambda: not self.list_agents(), 10, lambda: f"the end of {self.list_agents()}")
        for host in self.launches.box.nodes:
            assert host.run(["ls", "-d", f"/tmp/aboard-{self.launches.box.crew_id}"]).stdout == ""


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def escape(box: Sandbox) -> Iterator[Escape]:
    attack = Escape(Launches(box, folder="/shared/escape"))
    yield attack
    # A failed test must not disturb the next.
    process_tree.send_signal((*attack.list_processes(), *attack.list_agents()), signal.SIGKILL)
    for host in box.nodes:
        host.run(["rm", "-rf", f"/tmp/aboard-{box.crew_id}"])


@pytest.mark.ground
def test_a_rank_that_kills_supervisor_and_guard_leaves_no_process(escape: Escape) -> None:
    """The agent that the head is connected to ends all of the run, and the verdict names what was killed."""
    ran = escape.launch("kill")
    escape.expect_clean()
    assert ran.verdict["code"] == "run-agent-killed"
    assert ran.verdict["nodes"] == ["n1"]
    assert "guard" in ran.verdict["seen"]


@pytest.mark.ground
def test_a_rank_that_kills_the_guard_is_ended_and_the_guard_is_named(escape: Escape) -> None:
    """The supervisor ends the ranks because its guard was killed: that is the verdict, not how its rank died."""
    ran = escape.launch("guard")
    escape.expect_clean()
    assert ran.verdict["code"] == "run-agent-killed"
    assert "guard process on n1 was killed" in ran.verdict["seen"]
    assert "guard process on n1 was killed" in escape.launches.aboard("why", ran.run).stdout


@pytest.mark.ground
def test_a_rank_that_stops_the_guard_and_kills_the_supervisor_leaves_no_process(escape: Escape) -> None:
    """The stopped guard is continued, and cleans up."""
    ran = escape.launch("stop")
    escape.expect_clean()
    assert ran.verdict["code"] == "run-agent-killed"


@pytest.mark.ground
def test_a_rank_that_kills_every_agent_of_its_node_leaves_no_process(escape: Escape) -> None:
    """The head connects again; that agent is nobody's parent, and finds the run's processes by their mark."""
    ran = escape.launch("all")
    escape.expect_clean()
    assert ran.verdict["code"] == "run-agent-killed"


@pytest.mark.ground
def test_check_fix_ends_a_process_with_an_emptied_environment(escape: Escape) -> None:
    """Even with head and agents killed at once, the mark shows to which run a process belongs."""
    with escape.launches.going("launch", "--lease", "8", "--", "escape.py", escape.token, "none") as head:
        wait_until(escape.list_escaped, 30, lambda: f"the escape: {head.said}")
    agents = escape.list_agents()
    # Stopped first, so that none of them cleans up after another.
    process_tree.send_signal(agents, signal.SIGSTOP)
    process_tree.send_signal(agents, signal.SIGKILL)
    assert escape.list_escaped()
    said = escape.launches.aboard("check", "--only", "host", "--fix").stdout
    wait_until(lambda: not escape.list_escaped(), 10, lambda: said)
    escape.expect_clean()
