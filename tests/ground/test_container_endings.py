"""However a run in containers ends, no process, container, unpacked image or directory is left on its node."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deadlines import wait_until
from launching import Going, Launches, build_sandbox

from aboard.agent import process_tree
from aboard.sandbox import Host

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("container-endings")]

SLOTS = 2
LEASE = 4
IMAGES = {"apptainer": "/opt/images/train.sif", "podman": "train"}
# A rank that saves when it is asked to stop, and counts the requests; its daemon has another session and parent.
RANK = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
requests = []
signal.signal(signal.SIGTERM, lambda *_: requests.append(1))
os.write(1, b"began\\n")
if sys.argv[1] == "raise":
    raise ValueError("a fault of the script")
while sys.argv[1] == "wait" and not requests:
    time.sleep(0.05)
time.sleep(0.3)
if requests:
    os.write(1, b"saved after %d\\n" % len(requests))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Launches]:
    """One node that runs containers, with two ranks."""
    with build_sandbox("container-endings", nodes=1, containers=True) as box:
        launches = Launches(box, slots=SLOTS)
        launches.put("rank.py", RANK)
        # What Podman keeps in a home from its first use on is there before.
        box.nodes[0].run(["podman", "run", "--rm", IMAGES["podman"], "true"]).check_returncode()
        yield launches


class ContainerRun:
    """A launch in containers, its processes as this machine sees them, and what was there before."""

    def __init__(self, launches: Launches, runtime: str) -> None:
        self._launches = launches
        self.node = launches.box.nodes[0]
        node = f"n1 slots={SLOTS}"
        container = f"{{runtime: {runtime}, image: '{IMAGES[runtime]}'}}"
        launches.put("aboard.yaml", f"cluster:\n  nodes: ['{node}']\n  container: {container}\n")
        self._before = describe_leftovers(self.node)

    def run(self, mode: str) -> tuple[int, str]:
        done = self._launches.launch("--check", "none", "--", "rank.py", mode)
        return done.code, done.said

    def end(self, act: Callable[["ContainerRun"], object]) -> tuple[int, str]:
        """Starts ranks that wait, ends them by `act`, and returns the launch's exit code and output."""
        words = ("launch", "--check", "none", "--lease", str(LEASE), "--grace", "10", "--", "rank.py", "wait")
        with self._launches.going(*words) as going:
            wait_until(lambda: len(self.ranks) == SLOTS and self._began(going), 60, lambda: f"ranks: {going.said}")
            act(self)
            return going.wait(60), going.said

    def require_nothing_left(self) -> None:
        wait_until(lambda: describe_leftovers(self.node) == self._before, 30, self._show_difference)

    @property
    def conductor(self) -> int:
        return int(self._launches.read(self._launches.newest(), "conductor.pid"))

    @property
    def ranks(self) -> list[int]:
        return self._find(lambda words: words[0].rpartition("/")[2].startswith("python") and "rank.py" in words[-2:])

    @property
    def supervisor(self) -> int:
        """The agent's process below the guard, which is below the bridge."""
        agents, parents = self._find(lambda words: "-ISc" in words), process_tree.read_parents()
        return next(pid for pid in agents if parents[pid] in agents and parents[parents[pid]] in agents)

    @property
    def guard(self) -> int:
        return process_tree.read_parents()[self.supervisor]

    @property
    def runtimes(self) -> list[int]:
        """The processes that the supervisor started for the ranks."""
        supervisor = self.supervisor
        own = [pid for pid, parent in process_tree.read_parents().items() if parent == supervisor]
        return [pid for pid in own if os.getpgid(pid) == pid and "conmon" not in read_words(pid)[0]]

    def kill_agents(self) -> None:
        """Kills the guard and the supervisor before one of them can clean up after the other."""
        guard, supervisor = self.guard, self.supervisor
        os.kill(guard, signal.SIGSTOP)
        kill([supervisor, guard])

    def head(self, *words: str) -> None:
        assert self._launches.box.head.run(list(words), cwd=self._launches.folder).returncode == 0

    def _began(self, going: Going) -> bool:
        return f"phase python {SLOTS}/{SLOTS}" in going.said

    def _find(self, condition: Callable[[list[str]], bool]) -> list[int]:
        return [pid for pid in self.node.pids() if condition(read_words(pid))]

    def _show_difference(self) -> str:
        now = describe_leftovers(self.node)
        return f"{[sorted(now[kind] ^ self._before[kind]) for kind in now]}"


def read_words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] or [""]
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def describe_leftovers(node: Host) -> dict[str, set[str]]:
    """The user's processes and containers, and the files in the places that runtimes and Aboard use."""
    # First, since this may start the process that keeps a user's namespaces.
    containers = node.run(["podman", "ps", "--all", "--quiet"]).stdout.split()
    # Without Apptainer's own keys and its cache of downloaded images.
    places = ["/tmp", "/var/tmp", "/dev/shm", "/home/crew", "-xdev", "-not", "-path", "/home/crew/.apptainer*"]
    files = node.run(["find", *places], root=True).stdout.splitlines()
    processes = set()
    for pid in node.pids():
        words = read_words(pid)
        if words != [""] and Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}").stat().st_uid:
            processes.add(" ".join(words)[:80])
    return {"containers": set(containers), "files": set(files), "processes": processes}


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, number)


RUNTIMES = pytest.mark.parametrize("runtime", list(IMAGES))


@RUNTIMES
def test_stop(hosts: Launches, runtime: str) -> None:
    """Each rank gets one request to terminate, has the time to save, and nothing is left."""
    run = ContainerRun(hosts, runtime)
    code, said = run.end(lambda run: run.head("aboard", "stop"))
    assert code == 130
    assert "saved after 1" in said, said
    assert "saved after 2" not in said, said
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
@pytest.mark.parametrize(("mode", "code"), [("finish", 0), ("raise", 1)])
def test_ranks_that_exit_by_themselves(hosts: Launches, runtime: str, mode: str, code: int) -> None:
    """Whether they finish or fail, their daemons and containers go with them."""
    run = ContainerRun(hosts, runtime)
    assert run.run(mode)[0] == code
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
def test_ctrl_c(hosts: Launches, runtime: str) -> None:
    """The ranks save, as without a container."""
    run = ContainerRun(hosts, runtime)
    code, said = run.end(lambda run: run.head("kill", "-INT", str(run.conductor)))
    assert code == 130
    assert "saved after 1" in said, said
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
def test_a_killed_rank(hosts: Launches, runtime: str) -> None:
    """Its signal is its exit code, whatever the runtime returns for it."""
    run = ContainerRun(hosts, runtime)
    code, said = run.end(lambda run: kill(run.ranks[:1]))
    assert code == 128 + signal.SIGKILL
    assert "was killed by SIGKILL" in said, said
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
def test_a_killed_runtime(hosts: Launches, runtime: str) -> None:
    """The rank that it leaves behind is killed, and its container is removed."""
    run = ContainerRun(hosts, runtime)
    run.end(lambda run: kill(run.runtimes[:1]))
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
@pytest.mark.parametrize("victim", ["supervisor", "guard"])
def test_a_killed_agent(hosts: Launches, runtime: str, victim: str) -> None:
    """The guard cleans up after the supervisor, and the supervisor after the guard."""
    run = ContainerRun(hosts, runtime)
    run.end(lambda run: kill([getattr(run, victim)]))
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
def test_a_killed_head(hosts: Launches, runtime: str) -> None:
    """The supervisor ends the containers when the lease expires."""
    run = ContainerRun(hosts, runtime)
    run.end(lambda run: run.head("kill", "-KILL", str(run.conductor)))
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
def test_a_killed_guard_and_supervisor(hosts: Launches, runtime: str) -> None:
    """The bridge, to which the head is connected, cleans up after both."""
    run = ContainerRun(hosts, runtime)
    run.end(lambda run: run.kill_agents())
    run.require_nothing_left()


@pytest.mark.nightly
@RUNTIMES
def test_a_killed_head_guard_and_supervisor(hosts: Launches, runtime: str) -> None:
    """With nobody left to clean up, the next check finds what is left, and `--fix` removes it."""
    run = ContainerRun(hosts, runtime)

    def kill_all(run: ContainerRun) -> None:
        guard, supervisor = run.guard, run.supervisor
        bridge = process_tree.read_parents()[guard]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            kill([bridge, guard, supervisor], number)
        run.head("kill", "-KILL", str(run.conductor))

    run.end(kill_all)
    assert "host-leftover" in hosts.aboard("check", "--only", "host").stdout
    hosts.aboard("check", "--only", "host", "--fix")
    run.require_nothing_left()
