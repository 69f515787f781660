"""Faults of a host: sshd, names, clock, limits, disks, Python, processes, power. All seen as the ordinary user."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deadlines import wait_until, within

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import Fault, inject_temporarily, list_active_faults
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.faults.host.login_shell import LoginShell, NoisyShell
from aboard.sandbox.faults.host.processes import PortTaken, PowerLoss, ProcessKilled, ProcessStopped
from aboard.sandbox.faults.host.python_interpreter import HostilePython, NoPython, OldPython, OtherPython
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import KeyRemoved, MaxStartups, OtherHostKey, SshdSlow, SshdStopped
from aboard.sandbox.faults.network.name_resolution import OwnNameOnLoopback, UnresolvedName

pytestmark = pytest.mark.ground

QUICK = ("-oBatchMode=yes", "-oConnectTimeout=2", "-oKexAlgorithms=curve25519-sha256")
# Two who have connected and don't log in, until they are told to go.
LOITERERS = """
import socket, sys
links = [socket.create_connection((sys.argv[1], 22)) for _ in range(2)]
print([link.recv(4) for link in links], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def well(box: Sandbox) -> Iterator[None]:
    """Each test leaves the shared hosts as it found them."""
    yield
    assert list_active_faults(box) == {}


def ssh(source: Host, target: str, command: str = "true", *options: str) -> subprocess.CompletedProcess[str]:
    return source.run(["ssh", *QUICK, *options, target, command])


class Session:
    """A login to n2 that says back what it is told."""

    def __init__(self, source: Host) -> None:
        command = "while read -r word; do echo $word; done"
        self.process: subprocess.Popen[str] = source.popen(
            ["ssh", *QUICK, "n2", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.echo("open") == "open"

    def echo(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=10)


def out(box: Sandbox, command: str, node: str = "n2") -> str:
    """What a login from the head sees."""
    done = ssh(box.head, node, command)
    return done.stdout.strip() or done.stderr.strip()


@contextmanager
def loitering(host: Host) -> Iterator[None]:
    process = host.popen(["python3", "-c", LOITERERS, "n2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "SSH-" in process.stdout.readline()
        yield
    finally:
        process.communicate(timeout=10)


@contextmanager
def sleeper(host: Host, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = host.popen(["sleep", "600"], env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (SshdStopped(), "port 22: Connection refused"),
        (SshdSlow(seconds=4), "Connection timed out during banner exchange"),
        (OtherHostKey(), "Host key verification failed."),
        (KeyRemoved(), "Permission denied (publickey)."),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_ssh_says_why(box: Sandbox, fault: Fault, message: str) -> None:
    """A login fails with what ssh says on a real host with this fault, the next host is well, and healed is healed."""
    with inject_temporarily(box, box.host("n2"), fault):
        done = ssh(box.head, "n2")
        assert done.returncode == 255
        assert message in done.stderr
        assert ssh(box.head, "n3").returncode == 0
    assert ssh(box.head, "n2").returncode == 0


def test_slow_login(box: Sandbox) -> None:
    """A slow sshd lets one in after the time that was asked for, under one's own address."""
    with inject_temporarily(box, box.host("n2"), SshdSlow(seconds=1.5)):
        start = time.monotonic()
        with within(4):
            assert ssh(box.head, "n2", "echo $SSH_CONNECTION").stdout.split()[0] == box.head.address
        assert time.monotonic() - start >= 1.5


def test_sessions_stay(box: Sandbox) -> None:
    """A session that is open outlives the stop of sshd, and the healing of a slow one."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, SshdSlow(seconds=0.3)):
        session = Session(box.head)
    try:
        assert session.echo("healed") == "healed"
        with inject_temporarily(box, n2, SshdStopped()):
            assert session.echo("stopped") == "stopped"
    finally:
        session.end()


def out_of(host: Host, command: str) -> str:
    return host.run(["sh", "-c", command]).stdout.strip()


def test_max_startups(box: Sandbox) -> None:
    """With two at the door, sshd drops the third; then it lets everyone in again."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, MaxStartups(limit=2)):
        with loitering(box.head):
            done = ssh(box.head, "n2")
            assert done.returncode == 255
            assert "kex_exchange_identification" in done.stderr
        # sshd notices a moment later that they have gone.
        wait_until(lambda: ssh(box.head, "n2").returncode == 0, 10, "there is room again")
    with loitering(box.head):
        assert ssh(box.head, "n2").returncode == 0


def test_unresolved(box: Sandbox) -> None:
    """The name of one peer leads nowhere, on one host."""
    with inject_temporarily(box, box.head, UnresolvedName(peer="n2")):
        assert "Could not resolve hostname n2" in ssh(box.head, "n2").stderr
        assert ssh(box.head, "n3").returncode == 0
        assert out_of(box.host("n3"), "getent hosts n2").startswith(box.host("n2").address)
    assert ssh(box.head, "n2").returncode == 0


def test_own_name_on_loopback(box: Sandbox) -> None:
    """A host's own name leads to itself only, its peers still find it."""
    asked = "getent ahostsv4 n2 | cut -d' ' -f1 | sort -u"
    with inject_temporarily(box, box.host("n2"), OwnNameOnLoopback()):
        assert out(box, asked) == "127.0.1.1"
        assert out_of(box.head, asked) == box.host("n2").address
    assert out(box, asked) == box.host("n2").address


@pytest.mark.parametrize("seconds", [90.0, -3600.0])
def test_clock_offset(box: Sandbox, seconds: float) -> None:
    """Programs see another wall time, on this host only, while their timers run as ever."""
    lock = "import threading as t; k = t.Lock(); k.acquire(); k.acquire(timeout=0.3)"
    with inject_temporarily(box, box.host("n2"), ClockOffset(seconds=seconds)):
        assert int(out(box, "date +%s")) - time.time() == pytest.approx(seconds, abs=5)
        assert float(out(box, "python3 -c 'import time; print(time.time())'")) - time.time() == pytest.approx(
            seconds, abs=5
        )
        with within(10):
            assert ssh(box.head, "n2", f"python3 -c '{lock}'").returncode == 0
        assert int(out(box, "date +%s", "n3")) == pytest.approx(time.time(), abs=5)
    assert int(out(box, "date +%s")) == pytest.approx(time.time(), abs=5)


def test_small_shm(box: Sandbox) -> None:
    """Shared memory ends at its size."""
    fill = "head -c 3000000 /dev/zero > /dev/shm/fill; rm -f /dev/shm/fill"
    with inject_temporarily(box, box.host("n2"), SmallShm(mib=1)):
        assert "No space left on device" in out(box, fill)
        assert out(box, "df --output=size -k /dev/shm | tail -n 1") == "1024"
    assert out(box, fill) == ""


def test_low_limits(box: Sandbox) -> None:
    """A login gets the low limits, on this host only, and the old ones when it is healed."""
    before = out(box, "ulimit -n; ulimit -l; ulimit -u")
    with inject_temporarily(box, box.host("n2"), LowLimits(nofile=64, memlock=16, nproc=500)):
        assert out(box, "ulimit -n; ulimit -l; ulimit -u").split() == ["64", "16", "500"]
        assert out(box, "ulimit -n; ulimit -l; ulimit -u", "n3") == before
    assert out(box, "ulimit -n; ulimit -l; ulimit -u") == before


def test_limits_outlive_another_sshd_fault(box: Sandbox) -> None:
    """Another fault that starts sshd anew doesn't heal the limits."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, LowLimits(nofile=70)):
        with inject_temporarily(box, n2, SshdStopped()):
            assert ssh(box.head, "n2").returncode == 255
        assert out(box, "ulimit -n") == "70"
        with inject_temporarily(box, n2, MaxStartups(), SshdSlow(seconds=0.4)):
            assert out(box, "ulimit -n") == "70"


def test_slow_outlives_healed_limits(box: Sandbox) -> None:
    """Healing the limits of a slow sshd leaves it slow."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, SshdSlow(seconds=1)):
        with inject_temporarily(box, n2, LowLimits(nofile=70)):
            assert out(box, "ulimit -n") == "70"
        start = time.monotonic()
        assert out(box, "ulimit -n") != "70"
        assert time.monotonic() - start > 1


def test_disk_full(box: Sandbox) -> None:
    """A full disk takes no byte more; what was in it and what came meanwhile is there afterwards."""
    write = "echo more > /private/more && cat /private/more"
    out(box, "echo old > /private/old; echo gone > /private/gone")
    with inject_temporarily(box, box.host("n2"), DiskFull()):
        assert "No space left on device" in out(box, write)
        assert out(box, "df --output=pcent /private | tail -n 1") == "100%"
        assert out(box, "cat /private/old; rm /private/gone; echo ok > ~/elsewhere; cat ~/elsewhere") == "old\nok"
        assert out(box, write, "n3") == "more"
    assert out(box, f"{write}; ls /private; stat -c %U /private") == "more\nmore\nold\ncrew"
    out(box, "rm /private/* ~/elsewhere")
    out(box, "rm /private/*", "n3")


def test_disk_nearly_full(box: Sandbox) -> None:
    """What is left can be used, and not a page more."""
    with inject_temporarily(box, box.host("n2"), DiskFull(free_mib=2)):
        assert out(box, "head -c 1000000 /dev/zero > /private/a") == ""
        assert "No space left" in out(box, "head -c 2000000 /dev/zero > /private/b")
        out(box, "rm /private/*")


def test_path_missing(box: Sandbox) -> None:
    """A directory is gone, a mount point is bare; afterwards both are back with what was in them."""
    out(box, "echo mine > /private/file; echo ours > /shared/file")
    with inject_temporarily(box, box.host("n2"), PathMissing(path="/private"), PathMissing(path="/shared")):
        assert "No such file" in out(box, "cat /private")
        assert out(box, "ls -A /shared; mountpoint -q /shared || echo bare") == "bare"
        assert out(box, "cat /shared/file", "n3") == "ours"
    assert out(box, "cat /private/file /shared/file") == "mine\nours"
    out(box, "rm /private/file /shared/file")


def test_no_python(box: Sandbox) -> None:
    """No Python by any of its names."""
    with inject_temporarily(box, box.host("n2"), NoPython()):
        assert "command not found" in out(box, "python3 -V")
        assert out(box, "ls /usr/bin/python3* /usr/local/bin/python3* 2>/dev/null | grep -v config; echo .") == "."
    assert out(box, "python3 -V").startswith("Python 3.")


def test_old_python(box: Sandbox) -> None:
    """A Python that says it is 3.6, however it is asked."""
    asked = "import sys; print(sys.version_info >= (3, 9), sys.version_info[:2], sys.version.split()[0])"
    with inject_temporarily(box, box.host("n2"), OldPython(version="3.6.15")):
        assert out(box, "python3 -V") == "Python 3.6.15"
        for how in (f"python3 -c '{asked}'", f"python3 -ISc '{asked}'", f"echo '{asked}' | python3 -"):
            assert out(box, how) == "False (3, 6) 3.6.15"
        assert out(box, "python3 -V", "n3") != "Python 3.6.15"
    assert out(box, "python3 -V") != "Python 3.6.15"


def test_other_python(box: Sandbox) -> None:
    """A Python of another environment lacks a module, or is another program altogether."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, OtherPython(without="json,sqlite3")):
        assert "ModuleNotFoundError: No module named 'json'" in out(box, "python3 -c 'import json'")
        assert out(box, "python3 -c 'import csv, sys; print(sys.argv)' a b") == "['-c', 'a', 'b']"
    with inject_temporarily(box, n2, OtherPython(program="/bin/echo")):
        assert out(box, "python3 -c anything") == "-c anything"
    assert out(box, "python3 -c 'import json; print(7)'") == "7"


@pytest.mark.parametrize(("answer", "count"), [("garbage", "100000"), ("endless-line", "100000"), ("silence", "0")])
def test_hostile_python(box: Sandbox, answer: str, count: str) -> None:
    """A Python that answers anything but what it was asked for."""
    fault = HostilePython(answer=answer)  # type: ignore[arg-type]  # the table's words are the field's
    with inject_temporarily(box, box.host("n2"), fault):
        assert out(box, "timeout 1 python3 -c 'print()' | head -c 100000 | wc -c") == count
    assert out(box, "python3 -c 'print(7)'") == "7"


def test_noisy_shell(box: Sandbox) -> None:
    """A login says something of its own first."""
    with inject_temporarily(box, box.host("n2"), NoisyShell(lines=5)):
        assert len(out(box, "echo word").splitlines()) == 6
        assert out(box, "echo word").endswith("word")
    with inject_temporarily(box, box.host("n2"), NoisyShell(lines=200_000)):
        assert len(out(box, "true")) > 5_000_000
    assert out(box, "echo word") == "word"


@pytest.mark.parametrize("shell", ["csh", "fish"])
def test_login_shell(box: Sandbox, shell: str) -> None:
    """A login is served by the shell that was asked for."""
    fault = LoginShell(shell=shell)  # type: ignore[arg-type]  # the table's words are the field's
    with inject_temporarily(box, box.host("n2"), fault):
        assert out(box, "echo $SHELL").endswith(f"/{shell}")
    assert out(box, "echo $SHELL") == "/bin/bash"


def test_port_taken(box: Sandbox) -> None:
    """Nobody else gets the port, and its user can see who has it."""
    bind = 'python3 -c \'import socket; socket.create_server(("", 29500)); print("mine")\''
    with inject_temporarily(box, box.host("n2"), PortTaken(port=29500)):
        assert "Address already in use" in out(box, bind)
        assert "pid=" in out(box, "ss -ltnpH sport = 29500")
        assert out(box, bind, "n3") == "mine"
    assert out(box, bind) == "mine"
    with inject_temporarily(box, box.host("n2"), PortTaken(port=29500, owner="root")):
        assert "pid=" not in out(box, "ss -ltnpH sport = 29500")


def test_process_stopped(box: Sandbox) -> None:
    """Only processes with the run's id in their environment are stopped, and they go on when healed."""
    n2 = box.host("n2")

    def states() -> list[str]:
        return sorted(out_of(n2, "ps -u crew -o stat=,comm= | grep sleep | cut -c1").split())

    with sleeper(n2, RUN_ID="run-17"), sleeper(n2, RUN_ID="run-18"):
        wait_until(lambda: states() == ["S", "S"], 10, "both sleep")
        with inject_temporarily(box, n2, ProcessStopped(environ="RUN_ID=run-17")):
            wait_until(lambda: states() == ["S", "T"], 10, "one is stopped")
        wait_until(lambda: states() == ["S", "S"], 10, "both sleep again")
        pid = int(out_of(n2, "pgrep -o sleep -u crew"))
        with inject_temporarily(box, n2, ProcessStopped(pid=pid)):
            wait_until(lambda: states() == ["S", "T"], 10, "one is stopped")


def test_process_killed(box: Sandbox) -> None:
    """Only processes with the run's id die; nothing is left to heal."""
    n2 = box.host("n2")
    with sleeper(n2, RUN_ID="run-17") as victim, sleeper(n2, RUN_ID="run-18") as other:
        wait_until(lambda: len(out_of(n2, "pgrep -u crew sleep").split()) == 2, 10, "both sleep")
        with inject_temporarily(box, n2, ProcessKilled(environ="RUN_ID=run-17")):
            assert victim.wait(timeout=10) == -9
            assert other.poll() is None
            assert list_active_faults(box) == {}


def test_power_loss(box: Sandbox) -> None:
    """A host goes dark and comes back with its disk; rules went with the power, files didn't."""
    n2 = box.host("n2")
    out(box, "echo kept > /private/kept; echo lost > /tmp/lost")
    with inject_temporarily(box, n2, MaxStartups(limit=9), PortTaken(port=29500)):
        with inject_temporarily(box, n2, PowerLoss()):
            assert not n2.on
            assert "timed out" in ssh(box.head, "n2").stderr
            assert ssh(box.head, "n3").returncode == 0
        assert out(box, "cat /private/kept; test ! -e /tmp/lost && echo empty") == "kept\nempty"
        assert [fault.name for fault in list_active_faults(box)["n2"]] == ["max-startups"]
        assert out(box, "ss -ltnH sport = 29500") == ""
    out(box, "rm /private/kept")


def test_our_python_is_in_no_fault(box: Sandbox) -> None:
    """A fault that needs a program in the host works where Python is gone."""
    with inject_temporarily(box, box.host("n2"), NoPython(), PortTaken(port=29501)):
        assert "29501" in out(box, "ss -ltnH sport = 29501")
