"""What the world does to a launch: lost power, cut networks, a killed head, a full disk, floods, taken ports."""

import json
import time
from collections.abc import Iterator

import pytest
from deadlines import wait_until
from launching import Launches, build_sandbox, count_ranks

from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.firewall import FirewallDrop

pytestmark = pytest.mark.ground

# Counts seconds and says so; on SIGTERM it ends as the default has it.
CLOCK = """
import sys, time
for second in range(int(sys.argv[1]) * 5):
    print("second", second / 5, flush=True)
    time.sleep(0.2)
"""
# Ranks meet where torch's would, hold the port as its store does, and count steps. Importing torch would take two
# seconds of a core in each rank.
MEET = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    store = socket.create_server(("", where[1]), backlog=64)
    peers = {}
    while len(peers) < world - 1:
        link = store.accept()[0]
        link.settimeout(5)
        try:
            # As torch's store does, it takes nobody for a rank who doesn't say so: a check also connects to the port.
            name = link.recv(8)
        except OSError:
            name = b""
        if name:
            peers[name] = link
    for peer in peers.values():
        peer.sendall(b"!")
else:
    link = None
    while link is None:
        try:
            link = socket.create_connection(where, 5)
        except OSError:
            time.sleep(0.05)
    link.settimeout(None)
    link.sendall(b"%d" % rank)
    assert link.recv(1) == b"!"
for step in range(int(os.environ.get("STEPS", "5"))):
    print(f"step {step}", flush=True)
    time.sleep(0.05)
print(f"world {world}", flush=True)
"""


@pytest.fixture(scope="module")
def four() -> Iterator[Launches]:
    """Four nodes with one rank each, and jobs that need no torch."""
    with build_sandbox("world", nodes=4, slots=1) as made:
        launches = Launches(made)
        launches.put("clock.py", CLOCK)
        launches.put("meet.py", MEET)
        yield launches


def _started(launches: Launches, before: str) -> str:
    """Waits until a new run has all its ranks started, and tells which it is."""

    def there() -> bool:
        run = launches.newest()
        return run != before and sum(event["kind"] == "started" for event in launches.events(run)) == 4

    wait_until(there, 60, "four ranks have started")
    return launches.newest()


def test_a_node_that_loses_power(four: Launches) -> None:
    """It is named when its lease is over; the others are ended, and the run never goes on with three."""
    before = four.newest()
    with four.going("launch", "--lease", "6", "--", "clock.py", "120") as process:
        run = _started(four, before)
        four.box.host("n3").kill_power()
        try:
            assert process.wait(60) == 1
        finally:
            four.box.host("n3").power_on()
    (found,) = json.loads(four.read(run, "findings.json"))
    assert (found["code"], found["nodes"], found["ranks"]) == ("run-node-gone", ["n3"], [2])
    assert four.orphans(run) == {}


def test_a_management_network_that_is_cut_for_15_seconds(four: Launches) -> None:
    """The run goes on, no line of it is lost, and it ends well; sshd that is restarted meanwhile does no harm."""
    before = four.newest()
    with four.going("launch", "--", "clock.py", "25") as process:
        run = _started(four, before)
        cut = time.monotonic()
        with inject_temporarily(four.box, four.box.host("n2"), FirewallDrop(network="management")):
            four.box.host("n3").sshd_restart()
            wait_until(lambda: "cut" in four.read(run, "events.jsonl"), 15, "the cut is noticed")
            wait_until(lambda: time.monotonic() > cut + 15, 20, "15 seconds are over")
        assert process.wait(60) == 0
    kinds = [event["kind"] for event in four.events(run) if event["node"] == "n2"]
    assert kinds.index("cut") < kinds.index("held", 1)
    said = four.aboard("logs", run, "--rank", "1", "--raw").stdout.splitlines()
    assert said == [f"second {second / 5}" for second in range(125)]


def test_a_head_that_is_killed(four: Launches) -> None:
    """Its ranks live as long as the lease says, then nothing is left on any node; status and why name it afterwards."""
    before = four.newest()
    with four.going("launch", "--lease", "5", "--", "clock.py", "120") as process:
        run = _started(four, before)
        pid = int(four.read(run, "conductor.pid"))
        four.box.head.run(["kill", "-KILL", str(pid)])
        process.wait(10)
        assert len(four.orphans(run)) == 4
        wait_until(lambda: not four.orphans(run), 5 + 2 + 10, "nothing is left")
    (line,) = [each for each in four.aboard("status").stdout.splitlines() if each.startswith(run)]
    assert "\tlost\t" in line
    assert f"the conductor (process {pid}) died without ending the run" in line
    assert "4 ranks were running on n[1-4]" in line
    for said in (four.aboard("status", run).stdout, four.aboard("why", run).stdout):
        assert "run-conductor-lost" in said
        assert f"cd {four.folder} && aboard launch --lease 5 -- clock.py 120" in said


def test_a_head_that_was_stopped_for_longer_than_the_lease(four: Launches) -> None:
    """Once it is continued, the run ends, and the verdict names the head, not the ranks that its nodes ended."""
    before = four.newest()
    with four.going("launch", "--lease", "5", "--", "clock.py", "120") as process:
        run = _started(four, before)
        pid = four.read(run, "conductor.pid").strip()
        four.box.head.run(["kill", "-STOP", pid])
        wait_until(lambda: not four.orphans(run), 5 + 2 + 10, "nothing is left")
        four.box.head.run(["kill", "-CONT", pid])
        assert process.wait(30) == 1
    said = four.aboard("why", run).stdout
    assert "run-head-paused" in said
    assert "run-out-of-memory" not in said
    assert "run-killed" not in said


def test_a_head_whose_disk_is_full(four: Launches) -> None:
    """The run goes on to its end; what could not be kept is counted and said."""
    four.box.head.run(["mkdir", "-p", "/home/crew/small"])
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=777", "tmpfs", "/home/crew/small"]
    assert four.box.head.run(mount, root=True).returncode == 0
    try:
        loud = "for number in range(40000): print('a line that takes some room', number)"
        four.put("loud.py", loud)
        done = four.box.head.run(
            ["aboard", "launch", "--allow-file", "--", "loud.py"],
            cwd=four.folder,
            env={"XDG_STATE_HOME": "/home/crew/small"},
            timeout=90,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert "dropped" in done.stdout
    finally:
        four.box.head.run(["umount", "/home/crew/small"], root=True)


@pytest.mark.nightly
def test_a_flood_of_one_rank(four: Launches) -> None:
    """1 GB from one rank: beats go on, the others' lines are all there, what is past the limit is counted."""
    four.put(
        "flood.py",
        """
import os, sys
if os.environ["RANK"] == "1":
    line = b"flood " * 1000 + b"\\n"
    for _ in range(1024 ** 3 // len(line)):
        sys.stdout.buffer.write(line)
else:
    for number in range(2000):
        print("calm", number)
""",
    )
    ran = four.launch("--", "flood.py", timeout=300)
    assert ran.code == 0, ran.said[-2000:]
    assert not any(event["kind"] == "cut" for event in four.events(ran.run))
    for rank in ("0", "2", "3"):
        said = four.aboard("logs", ran.run, "--rank", rank, "--raw").stdout.splitlines()
        assert said == [f"calm {number}" for number in range(2000)]
    assert "dropped" in ran.said


def test_a_line_without_an_end_and_bytes_that_are_no_text(four: Launches) -> None:
    """100 MB without a newline and random bytes: neither the head nor the other ranks are harmed."""
    four.put(
        "odd.py",
        """
import os, sys
rank = os.environ["RANK"]
if rank == "0":
    for _ in range(100):
        sys.stdout.buffer.write(b"x" * 1024 * 1024)
elif rank == "1":
    sys.stdout.buffer.write(bytes(range(256)) * 64 + b"\\n")
print("end", rank)
""",
    )
    ran = four.launch("--", "odd.py", timeout=120)
    assert ran.code == 0, ran.said[-2000:]
    raw = four.box.head.run(["sh", "-c", f"aboard logs {ran.run} --rank 1 --raw | md5sum"], cwd=four.folder).stdout
    want = "import hashlib;print(hashlib.md5(bytes(range(256))*64+b'\\nend 1\\n').hexdigest())"
    assert raw.split()[0] == four.box.head.run(["python3", "-c", want]).stdout.strip()
    assert four.aboard("logs", ran.run, "--rank", "3", "--raw").stdout == "end 3\n"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_gentle_and_twice_is_not(four: Launches, times: int) -> None:
    """Once, scripts have the grace to save; a second one ends them at once. Both exit with 130 and leave nothing."""
    four.put(
        "saver.py",
        """
import signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(6)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(300)
""",
    )
    before = four.newest()
    with four.going("launch", "--grace", "20", "--", "saver.py") as process:
        run = _started(four, before)
        wait_until(lambda: count_ranks(process.said, "ready") == 4, 20, lambda: f"it is ready: {process.said}")
        pid = four.read(run, "conductor.pid").strip()
        for _ in range(times):
            four.box.head.run(["kill", "-INT", pid])
            wait_until(lambda: "saving" in process.said, 20, lambda: f"it is told: {process.said}")
        assert process.wait(40) == 130
        assert "next aboard launch --grace 20 -- saver.py    # runs it again\n" in process.said
    assert ("saved" in four.aboard("logs", run).stdout) is (times == 1)
    assert four.orphans(run) == {}


def test_a_smaller_world_is_refused(four: Launches) -> None:
    """A node that can't be reached stops it before a rank is started, with the finding and exit code 2."""
    four.box.host("n4").sshd_stop()
    try:
        done = four.aboard("launch", "--", "clock.py", "1")
    finally:
        four.box.host("n4").sshd_restart()
    assert done.returncode == 2
    assert "reach-refused n4" in done.stdout.replace("  ", " ")
    asked = four.aboard("launch", "--", "torchrun", "--nnodes", "5", "clock.py", "1")
    assert asked.returncode == 3
    assert "5 nodes were requested, but there are 4" in asked.stderr


def test_two_runs_at_once(four: Launches) -> None:
    """Each has its own port and is ended by its own id; both finish."""
    with four.going("launch", "--", "meet.py") as one, four.going("launch", "--", "meet.py") as other:
        assert [one.wait(120), other.wait(120)] == [0, 0], one.said + other.said
        assert all(each.said.count("world 4") >= 1 for each in (one, other))


def test_a_second_run_beside_one_that_trains(four: Launches) -> None:
    """The usual port is taken by the first; the second finds another one, and both go on."""
    before = four.newest()
    with four.going("launch", "--env", "STEPS=100000", "--", "meet.py") as first:
        run = _started(four, before)
        wait_until(lambda: "step 3" in first.said, 60, lambda: f"the first one trains: {first.said}")
        ran = four.launch("--", "meet.py")
        assert ran.code == 0, ran.said
        four.aboard("stop", run)
        assert first.wait(30) == 130


def test_a_port_that_is_taken_between_look_and_launch(four: Launches) -> None:
    """Rank 0 finds its port taken: the run is tried again on another one, and says so."""
    four.put(
        "thief.py",
        """
import os, socket, sys
# Whoever is first on the port is in nobody's plan; only in the first attempt.
mark = "/shared/job/stolen"
if os.environ["RANK"] == "0" and not os.path.exists(mark):
    open(mark, "w").close()
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    thief.bind(("0.0.0.0", int(os.environ["MASTER_PORT"])))
    thief.listen()
exec(open("job.py").read())
""",
    )
    ran = four.launch("--include", "n[1-2]", "--", "thief.py", timeout=120)
    assert ran.code == 0, ran.said
    assert "[attempt 2, ranks 0-1 ×2] world 2" in four.aboard("logs", ran.run).stdout
    assert [event["kind"] for event in four.events(ran.run)].count("restarting") == 1


def test_detached(four: Launches) -> None:
    """The command comes back once all ranks have started; status, logs and stop speak to the conductor."""
    done = four.aboard("launch", "--detach", "--", "clock.py", "120")
    assert done.returncode == 0, done.stdout + done.stderr
    run = done.stdout.partition(":")[0]
    assert "running" in four.aboard("status").stdout
    assert "4/4 ranks" in four.aboard("status", run).stdout
    wait_until(lambda: "second 1.0" in four.aboard("logs", run, "--rank", "2").stdout, 20, "its lines come")
    assert four.aboard("stop", run).returncode == 0
    assert four.orphans(run) == {}
    assert "stopped" in four.aboard("status").stdout


def test_conducted_from_another_host(four: Launches) -> None:
    """`--on n1` types the same there: the run goes on without this machine, and its record is n1's."""
    there = four.box.host("n1")
    missing = four.aboard("launch", "--on", "n1", "n1", "--", "clock.py", "60")
    assert missing.returncode == 3
    assert "launch-on" in missing.stderr
    shim = four.box.head.run(["cat", "/usr/local/bin/aboard"]).stdout
    there.run(["sh", "-c", "cat > /usr/local/bin/aboard; chmod 755 /usr/local/bin/aboard"], root=True, input=shim)
    done = four.aboard("launch", "--on", "n1", "n1", "--", "clock.py", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    run = done.stdout.partition(":")[0]
    assert "running" in there.run(["aboard", "status"]).stdout
    assert there.run(["aboard", "stop", run]).returncode == 0
    assert four.orphans(run) == {}


def test_a_missing_directory_is_named_before_anything_starts(four: Launches) -> None:
    """Ranks start where the command was typed; a node without that directory stops the launch."""
    four.box.head.run(["mkdir", "-p", "/home/crew/only-here"])
    command = ["aboard", "launch", "n[1-2]", "--", "x.py"]
    done = four.box.head.run(command, cwd="/home/crew/only-here", timeout=60)
    assert done.returncode == 2
    assert "/home/crew/only-here" in done.stdout


def test_a_trial_names_the_node_that_can_not(four: Launches) -> None:
    """Each node alone first: the one that fails is named, with what it raised, and no pair is tried any more."""
    four.put(
        "picky.py",
        """
import os
if os.uname().nodename == "n3":
    raise RuntimeError("no such device")
exec(open("meet.py").read())
""",
    )
    done = four.aboard("launch", "--trial", "--", "picky.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "n3 can't run the command by itself" in " ".join(done.stdout.split())
    assert "RuntimeError: no such device" in " ".join(done.stdout.split())
    assert "n1+n2" not in done.stdout
    well = four.aboard("launch", "--trial", "--", "meet.py")
    assert well.returncode == 0, well.stdout + well.stderr
    assert "every node passed" in well.stdout


def test_nothing_of_the_sessions_is_left(four: Launches) -> None:
    """After all of this no agent, no supervisor and no directory of a run is on any node."""
    for host in four.box.nodes:
        left = f"ls -A /tmp/aboard-{four.box.crew_id} 2>/dev/null; pgrep -u crew -fa aboard | grep -v pgrep"
        assert host.run(["sh", "-c", left]).stdout == "", host.name
