"""A rank that kills or stops the agents of its node leaves no process: robustness, as it has the user's rights."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until
from launching import Launches, Ran
from other_users import PYTHON, VICTIM

from aboard.agent import frames, process_tree
from aboard.sandbox import Sandbox
from aboard.transport import agent_bootstrap

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


# Resets the mark as well.
HIDE = """
import os, resource, sys, time
resource.setrlimit(10, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], {})
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


def _is_agent(pid: int) -> bool:
    return "\0-ISc\0" in _read_command(pid)


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


@contextmanager
def _start_agent(group: Path) -> Iterator[Callable[[frames.Message], frames.Message]]:
    """An agent of another user in this control group; the function sends a request and returns the reply."""
    start = agent_bootstrap.build_bootstrap(60.0)
    command = agent_bootstrap.build_argv(PYTHON)
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd="/", env={}, user=VICTIM, group=VICTIM, extra_groups=(), **options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def read_frame() -> frames.Message:
            return frames.unpack(stdout.read(int.from_bytes(stdout.read(frames.HEADER), "big")))

        def ask(message: frames.Message) -> frames.Message:
            stdin.write(frames.pack({**message, "id": 1}))
            stdin.flush()
            while (reply := read_frame()).get("re") != 1:
                pass
            return reply

        (group / "cgroup.procs").write_text(str(process.pid))
        stdin.write(start.stdin)
        stdin.flush()
        assert stdout.read(len(start.marker)) == start.marker
        read_frame()
        try:
            yield ask
        finally:
            process.kill()


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A control group that the victim may use as they like; skips where there is no cgroup v2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    place = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if os.geteuid() != 0 or place is None:
        pytest.skip("needs root and cgroup v2, to delegate a group")
    group = place / f"test-{secrets.token_hex(6)}"
    group.mkdir()
    try:
        for path in (group, group / "cgroup.procs"):
            os.chown(path, VICTIM, VICTIM)
        yield group
    finally:
        (group / "cgroup.kill").write_text("1")
        wait_until(lambda: "populated 0" in (group / "cgroup.events").read_text(), 10)
        for path in (*group.glob("*/"), group):
            path.rmdir()


def _build_hold() -> frames.Message:
    lease = {"seconds": 60, "beat": 2, "grace": 0}
    run = {"run": f"test-{secrets.token_hex(6)}", "key": "k", "lease": lease, "silence": 60}
    return {**run, "acked": 0, "have": {}, "credit": 65536}


def test_a_delegated_control_group_is_removed_with_its_run(delegated: Path) -> None:
    """Ranks are in a group of their own while they run, and it is gone after a regular end."""
    with _start_agent(delegated) as ask:
        ask({"op": "hold", **_build_hold()})
        ask({"op": "start", "child": "0", "argv": ["sleep", "600"]})
        (group,) = delegated.glob("*/")
        wait_until((group / "cgroup.procs").read_text, 10, "the rank is in its group")
        ask({"op": "end", "grace": 0})
        wait_until(lambda: ask({"op": "ack", "seq": 100}) and not group.exists(), 10, "its end")


def test_a_delegated_control_group_ends_a_process_that_hides_everything_else(delegated: Path) -> None:
    """Without parent, environment and mark, and with every agent killed, the next agent still ends it by its group."""
    token, hold = secrets.token_hex(6), _build_hold()

    def list_hidden() -> list[int]:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if f"time.sleep(600)\0{token}" in _read_command(pid)]

    with _start_agent(delegated) as ask:
        assert "error" not in ask({"op": "hold", **hold})
        ask({"op": "start", "child": "0", "argv": [PYTHON, "-c", HIDE, token]})
        wait_until(list_hidden, 10, "the process hides")
        agents = [pid for pid in map(int, (delegated / "cgroup.procs").read_text().split()) if _is_agent(pid)]
        assert len(agents) == len(("bridge", "guard", "supervisor"))
        process_tree.send_signal(agents, signal.SIGKILL)
    assert list_hidden()
    with _start_agent(delegated) as ask:
        assert "no supervisor" in ask({"op": "attach", **hold})["error"]
        wait_until(lambda: not list_hidden(), 10, "its end")
    assert not list(delegated.glob("*/"))
