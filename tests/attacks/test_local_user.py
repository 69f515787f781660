"""Attacks by another user of a node or of the head, without any right of ours."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deadlines import until, wait_until
from doctor.collective.test_collective_probe import World, _about
from launching import Going, Launches, build_sandbox
from made_events import list_fields
from other_users import ATTACKER, VICTIM, run_as, start_as
from supervisor_runs import Run, held

from aboard.agent import run_directory
from aboard.agent.transfer.partial_file import part_name
from aboard.commands.sync.download_target import DownloadTarget, WantedFile
from aboard.config.this_machine import require_own_folders
from aboard.core.plan.plan import Start
from aboard.doctor.collective.multi_node_probe import build_collective_probe
from aboard.node_scripts.rank_roster import Roster, open_listener
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.namespaces import helper_program
from aboard.transport.node_session import NodeSession


def test_users_are_other_uids() -> None:
    """The actors of this file are neither root nor each other."""
    uids = [int(run_as(uid, "import os; print(os.getuid())")) for uid in (VICTIM, ATTACKER)]
    assert uids == [VICTIM, ATTACKER]


@contextmanager
def attacking(host: Host, code: str, *arguments: str) -> Iterator[Going]:
    """Runs Python code in the host as a user without any right of ours; leaving the block kills it."""
    become = f"import os; os.setgroups([]); os.setgid({ATTACKER}); os.setuid({ATTACKER}); os.chdir('/')\n"
    with tempfile.TemporaryFile("w+") as said:
        argv = [sys.executable, "-uc", become + code, *arguments]
        process = host.popen(argv, root=True, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield Going(process, said)
        finally:
            process.kill()
            process.wait()


# -- the rendezvous port ---------------------------------------------------------------------------------------------

# Rank 1 connects at once; rank 0 lets the thief have two seconds before it listens, as if it imported more.
SLOW_RANK_0 = """
import datetime, os, pathlib, threading, time
from torch.distributed import TCPStore
rank, stolen = int(os.environ["RANK"]), pathlib.Path("stolen")
print("ready", flush=True)
while not stolen.exists():
    time.sleep(0.02)
late = pathlib.Path("rank1-waits")
if rank == 1:
    threading.Timer(2.0, late.touch).start()
while rank == 0 and not late.exists():
    time.sleep(0.02)
store = TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0, timeout=datetime.timedelta(seconds=60)
)
if rank == 0:
    store.set("word", "right")
print("word", store.get("word").decode(), flush=True)
"""
# A port that is bound, but that nobody listens on, is reserved: no list is needed to find it.
STEAL = """
import socket
def find():
    while True:
        for port in (29500, *range(32768, 61000)):
            with socket.socket() as own:
                try:
                    own.bind(("", port))
                    continue
                except OSError:
                    pass
            thief = socket.socket()
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                thief.bind(("", port))
                thief.listen()
                return thief, port
            except OSError:
                thief.close()
thief, port = find()
print("listening", port)
while True:
    # Aboard's own test of the port connects and sends nothing.
    data = thief.accept()[0].recv(4096)
    if data:
        print("received", len(data), "bytes")
"""


@pytest.mark.ground
def test_a_stolen_rendezvous_port_gets_no_byte_of_a_rank(box: Sandbox) -> None:
    """A thief listens on the port before rank 0: no rank connects to it, its uid is named, and the run goes on."""
    launches = Launches(box)
    launches.put("slow.py", SLOW_RANK_0)
    box.head.run(["rm", "-f", f"{launches.folder}/stolen", f"{launches.folder}/rank1-waits"])
    with launches.going("launch", "--", "slow.py") as going:
        wait_until(lambda: "ready" in going.said, 60, lambda: going.said)
        with attacking(box.nodes[0], STEAL) as thief:
            wait_until(lambda: "listening" in thief.said, 30, lambda: thief.said)
            launches.put("stolen", "")
            assert going.wait(120) == 0, going.said
            assert re.fullmatch(r"listening \d+\n", thief.said)
            assert "word right" in going.said
            assert f"uid {ATTACKER}" in going.said


LISTEN = """
import socket, sys, time
address, port = sys.argv[1], int(sys.argv[2])
thief = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if ":" in address:
    thief.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
thief.bind((address, port))
thief.listen()
print("listening", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("address", ["0.0.0.0", "::1"])  # noqa: S104 - the thief's, not ours
def test_whoever_listens_on_the_rendezvous_port_is_named(address: str) -> None:
    """By uid, also if rank 0 still has the port's other address family; no rank is told to connect."""
    run = Run()

    def taken() -> list[tuple[int, bool]]:
        return [
            (list_fields(event)["uid"], list_fields(event)["beside"])
            for event in run.events
            if event.kind == "port_taken"
        ]

    async def story(hold: NodeSession) -> None:
        port = str(await hold.reserve(0))
        with start_as(ATTACKER, LISTEN, address, port) as thief:
            await until(taken)
            await hold.start(Start(child="0", argv=(sys.executable, "-c", LISTEN, "", port)))
            await until(lambda: len(taken()) > 1 or "exited" in run.kinds("0"))
            thief.kill()

    held(run, story)
    assert taken() == [(ATTACKER, False), (ATTACKER, True)][: 1 + (address == "::1")]
    assert "listening" not in run.kinds()


# As torch's store fails, without the seconds that importing torch takes.
BIND = """
import os, pathlib, socket, time
while not pathlib.Path("stolen").exists():
    print("ready", flush=True)
    time.sleep(0.2)
if os.environ["RANK"] == "0":
    socket.create_server(("", int(os.environ["MASTER_PORT"])))
time.sleep(60)
"""


@pytest.mark.ground
def test_a_fixed_rendezvous_port_that_is_stolen_ends_the_run_with_the_thiefs_uid(box: Sandbox) -> None:
    """The verdict names the uid, the port, the node and what to type: another port would be against the user's word."""
    launches = Launches(box)
    launches.put("bind.py", BIND)
    box.head.run(["rm", "-f", f"{launches.folder}/stolen"])
    with launches.going("launch", "--master-port", "29600", "--", "bind.py") as going:
        wait_until(lambda: "ready" in going.said, 60, lambda: going.said)
        with attacking(box.nodes[0], LISTEN, "", "29600") as thief:
            wait_until(lambda: "listening" in thief.said, 30, lambda: thief.said)
            launches.put("stolen", "")
            assert going.wait(60) == 1, going.said
    [found] = json.loads(launches.read(launches.newest(), "findings.json"))
    assert (found["code"], found["nodes"], found["ranks"]) == ("network-port-taken", ["n1"], [0])
    assert f"a process of uid {ATTACKER} listens there" in found["seen"]
    assert "sport = :29600" in found["fix"]


# -- denial of service -----------------------------------------------------------------------------------------------


@contextmanager
def squatted(box: Sandbox) -> Iterator[None]:
    """The attacker has taken the user's place in /tmp of the first node."""
    path = f"/tmp/aboard-{box.crew_id}"
    with attacking(box.nodes[0], f"os.mkdir({path!r}, 0o777)") as squatter:
        assert squatter.wait(10) == 0, squatter.said
    try:
        yield
    finally:
        box.nodes[0].run(["rm", "-rf", path], root=True).check_returncode()


@pytest.mark.ground
def test_a_place_in_tmp_that_somebody_else_took_stops_no_launch(box: Sandbox) -> None:
    """The run's files go to a private directory elsewhere, and `check` names the owner of the place in /tmp."""
    launches = Launches(box)
    with squatted(box):
        ran = launches.launch("--", "/bin/echo", "it runs")
        assert ran.code == 0, ran.said
        assert "it runs" in ran.said
        checked = launches.aboard("check", "--only", "host", "--json")
    [found] = [each for each in json.loads(checked.stdout)["findings"] if each["code"] == "host-tmp-taken"]
    assert (found["severity"], found["nodes"]) == ("warn", ["n1"])
    assert f"uid {ATTACKER}" in found["seen"]
    assert launches.orphans(ran.run) == {}


# The attacker makes and removes whatever may stand in the way, as fast as it can.
RACE = """
import os, sys
path = sys.argv[1]
print("ready", flush=True)
while True:
    for make, remove in ((lambda: os.mkdir(path, 0o777), os.rmdir), (lambda: os.symlink("/dev/shm", path), os.unlink),
                         (lambda: open(path, "x").close(), os.unlink)):
        try:
            make()
            os.path.isdir(path) and not os.path.islink(path) and os.chmod(path, 0o777)
            remove(path)
        except OSError:
            pass
"""
MAKE = """
import os, sys, types
agent = types.ModuleType("run_directory")
exec(sys.stdin.read(), agent.__dict__)
for number in range(100):
    path = agent.make_directory("run-%d" % number)
    for part in (path, os.path.dirname(path)):
        status = os.lstat(part)
        assert (status.st_uid, oct(status.st_mode)) == (os.getuid(), "0o40700"), part
    assert agent.resolve_directory("run-%d" % number) == path
    assert agent.list_runs() == ["run-%d" % number]
    agent.remove_directory(path)
"""


def test_a_race_for_the_place_in_tmp_never_gives_it_to_somebody_else() -> None:
    """Whatever the attacker makes there and whenever: a run's directory and its parent are private and the user's."""
    path = Path(f"/tmp/aboard-{VICTIM}")
    with start_as(ATTACKER, RACE, str(path)) as racer:
        try:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
            with start_as(VICTIM, MAKE, stdin=subprocess.PIPE) as victim:
                said = victim.communicate(Path(run_directory.__file__).read_text(), timeout=60)[0]
        finally:
            racer.kill()
    for left in Path("/tmp").glob(f"{path.name}*"):
        left.rmdir() if left.is_dir() and not left.is_symlink() else left.unlink()
    assert victim.returncode == 0, said


# Connects to each port of the victim as soon as it listens, and never sends a byte.
FLOOD = """
import socket, sys
victim, held = sys.argv[1], []
print("ready")
while True:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).readlines()[1:]:
            fields = line.split()
            if fields[3] != "0A" or fields[7] != victim:
                continue
            port = int(fields[1].rpartition(":")[2], 16)
            if port in [known for known, _ in held]:
                continue
            for _ in range(600):
                link = socket.socket()
                link.settimeout(2)
                try:
                    link.connect(("127.0.0.1", port))
                except OSError:
                    break
                held.append((port, link))
            print("flooded", port)
"""


@pytest.mark.ground
def test_idle_connections_make_no_network_finding(box: Sandbox) -> None:
    """600 silent connections to each port under test: the peers are still answered, and no firewall is reported."""
    launches = Launches(box)
    with attacking(box.nodes[0], FLOOD, str(box.crew_id)) as flood:
        wait_until(lambda: "ready" in flood.said, 10, lambda: flood.said)
        checked = launches.aboard("check", "--only", "network", "--json")
        # It says so after its last connection, which may take longer than the check.
        wait_until(lambda: "flooded" in flood.said, 30, lambda: flood.said)
    assert json.loads(checked.stdout)["findings"] == []


@pytest.fixture
def private_home() -> Iterator[Path]:
    """A directory that only root can enter, with a Python environment and a file whose own mode protects nothing."""
    # A host has a /tmp of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        (home / "env/bin").mkdir(parents=True)
        (home / "env/bin/python").symlink_to("/usr/bin/python3")
        (home / "token").write_text("hf_secret")
        yield home


@pytest.mark.ground
def test_a_sandbox_shows_no_file_beside_an_environment_in_a_private_home(
    private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts' user runs an environment in root's home, and neither lists nor reads what is beside it."""
    monkeypatch.setenv("VIRTUAL_ENV", str(private_home / "env"))
    with Sandbox.up(f"test-{os.getpid()}-home", nodes=1, temporary=True) as box:
        for host in box.hosts.values():
            python = f"{private_home}/env/bin/python"
            assert host.run([python, "-c", "print(1)"]).stdout == "1\n"
            read = host.run(["cat", f"{private_home}/token"])
            assert (read.stdout, read.returncode) == ("", 1)
            assert host.run(["ls", str(private_home)]).returncode != 0
    assert private_home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["hard link", "file of the attacker"])
def test_a_planted_part_of_a_file_is_not_continued(tmp_path: Path, planted: str) -> None:
    """In a directory that others can write to, a transfer neither writes to a file of ours nor publishes theirs."""
    shared, notes, content = tmp_path / "shared", tmp_path / "notes", b"weights"
    shared.mkdir()
    shared.chmod(0o777)
    notes.write_bytes(b"mine")
    sha256 = hashlib.sha256(content).hexdigest()
    if planted == "hard link":
        # As the attacker can where fs.protected_hardlinks is 0.
        os.link(notes, shared / part_name(sha256))
    else:
        (shared / part_name(sha256)).write_bytes(b"")
        os.chown(shared / part_name(sha256), ATTACKER, ATTACKER)
    with DownloadTarget(shared) as target:
        incoming = target.receive(WantedFile(name="model", bytes=len(content), sha256=sha256))
        incoming.write(incoming.start, memoryview(content)[incoming.start :])
        assert incoming.publish() == sha256
    assert (shared / "model").read_bytes() == content
    assert (shared / "model").stat().st_uid == os.getuid()
    assert notes.read_bytes() == b"mine"


# Prints the names of the files of processes that show the text, and whether a rank's command line is visible.
SCAN = """
import json, pathlib, sys
found, rank = set(), False
for process in pathlib.Path("/proc").glob("[0-9]*"):
    for name in ("cmdline", "environ"):
        try:
            content = (process / name).read_bytes()
        except OSError:
            continue
        rank |= name == "cmdline" and b"rest.py" in content
        if sys.argv[1].encode() in content and b"scanning" not in content:
            found.add(name)
print(json.dumps([sorted(found), rank]))
"""
PLACES = ("/home", "/run", "/tmp", "/var/tmp", "/var/spool", "/dev/shm", "/shared")
RUNTIMES = {
    "slurm": "",
    "apptainer": "  container: {runtime: apptainer, image: /opt/images/train.sif}\n",
    "podman": "  container: {runtime: podman, image: train}\n",
}


@pytest.fixture(scope="module")
def slurm_box() -> Iterator[Sandbox]:
    """Two nodes that have Slurm and can run containers."""
    with build_sandbox("secrets", nodes=2, slurm=True, containers=True) as made:
        yield made


def _run_on(host: Host, uid: int, *argv: str) -> str:
    """What a command of this user prints there."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return host.run([*user, *argv], root=True).stdout


def _scan(host: Host, uid: int, token: str) -> tuple[list[str], bool]:
    found, rank = json.loads(_run_on(host, uid, "/usr/bin/python3", "-c", SCAN, token, "scanning"))
    return found, rank


def _has_token(host: Host, uid: int, token: str) -> bool:
    """Whether a rank runs there, and its user sees the token in environments and in no command line."""
    return _scan(host, uid, token) == (["environ"], True)


@pytest.mark.ground
@pytest.mark.xdist_group("secrets")
@pytest.mark.parametrize(
    "runtime", [pytest.param(each, marks=pytest.mark.nightly if each == "podman" else []) for each in RUNTIMES]
)
def test_another_user_sees_no_secret_of_a_rank(slurm_box: Sandbox, runtime: str) -> None:
    """A rank's variable is in no command line, no file and no answer of Slurm for others, only in its environment."""
    token = f"hf_{runtime}_0123456789"
    launches = Launches(slurm_box, folder=f"/shared/{runtime}")
    launches.put("rest.py", "import time; time.sleep(60)")
    launches.put("aboard.yaml", f"cluster:\n  nodes: ['n[1-2] slots=1']\n{RUNTIMES[runtime]}")
    launch = ["aboard", "launch", "--check", "none", "--env", "HF_TOKEN", "--", "rest.py"]
    if runtime == "slurm":
        launches.put("aboard.yaml", "cluster: {}\n")
        launch = ["salloc", "--quiet", "--nodes=2", *launch]
    command = ["env", f"HF_TOKEN={token}", *launch]
    with slurm_box.head.popen(command, cwd=launches.folder, stdin=subprocess.DEVNULL) as launched:
        try:
            for node in slurm_box.nodes:
                wait_until(partial(_has_token, node, slurm_box.crew_id, token), 60)
            for host in (slurm_box.head, slurm_box.host("n1")):
                assert _scan(host, ATTACKER, token)[0] == []
                files = ["find", *PLACES, "-xdev", "-user", str(slurm_box.crew_id), "-type", "f", "-readable"]
                assert _run_on(host, ATTACKER, *files, "-exec", "grep", "-ls", token, "{}", "+") == ""
            if runtime == "slurm":
                for question in ("scontrol show job --details", "scontrol show step", "squeue -O ALL"):
                    assert token not in _run_on(slurm_box.head, ATTACKER, *question.split())
        finally:
            launches.aboard("stop", "--now")
            launched.kill()


@pytest.mark.ground
@pytest.mark.xdist_group("secrets")
def test_a_directory_that_another_user_planted_in_the_tmp_of_a_job_gets_nothing(slurm_box: Sandbox) -> None:
    """In a Slurm job, too, the agent uses neither a link nor a directory that others made where its own would be."""
    launches = Launches(slurm_box, folder="/shared/planted")
    launches.put("aboard.yaml", "cluster: {}\n")
    launches.put("quick.py", "print('ran')")
    place = f"/tmp/aboard-{slurm_box.crew_id}"
    # Another run may have one there.
    wait_until(lambda: all(node.run(["ls", place]).returncode for node in slurm_box.nodes), 60)
    _run_on(slurm_box.host("n1"), ATTACKER, "sh", "-c", f"umask 0; mkdir /tmp/trap && ln -s /tmp/trap {place}")
    _run_on(slurm_box.host("n2"), ATTACKER, "sh", "-c", f"umask 0; mkdir {place} && ln -s {place} /tmp/trap")
    try:
        launched = slurm_box.head.run(
            ["salloc", "--quiet", "--nodes=2", "aboard", "launch", "--check", "none", "--", "quick.py"],
            cwd=launches.folder,
        )
        for node in slurm_box.nodes:
            assert node.run(["ls", "-A", "/tmp/trap/"], root=True).stdout == ""
        # Either another place was used, or the launch says which directory is not ours.
        assert launched.returncode == 0 or place in launched.stdout
    finally:
        for node in slurm_box.nodes:
            node.run(["rm", "-rf", place, "/tmp/trap"], root=True)


# Another head, with the run's id and without its key; prints what each attempt was told.
SECOND_HEAD = """
import asyncio, sys
from aboard.core.cluster.node import Node
from aboard.core.run.lease import Lease
from aboard.diagnoses import AboardError
from aboard.transport.node_dialer import NodeDialer, choose_transport
from aboard.transport.node_session import NodeSession

async def attempt(act):
    lease = Lease(seconds=5.0, beat=1.0, grace=0.0)
    session = NodeSession(Node(name="n1"), NodeDialer(choose_transport), run=sys.argv[1], key="0" * 32, lease=lease)
    try:
        await getattr(session, act)()
        await session.end(0.0)
        print("in")
    except AboardError as error:
        print(error.seen)
    await session.leave()

async def attack():
    for act in ("begin", "resume", "resume"):
        await attempt(act)

asyncio.run(attack())
"""


@pytest.mark.ground
def test_a_second_head_with_the_id_of_a_run_is_refused(box: Sandbox) -> None:
    """Whoever knows a run's id, but not its key, can neither take over its ranks nor end or read the run."""
    launches = Launches(box, folder="/shared/heads")
    launches.put("rest.py", "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.1)\n")
    with launches.going("launch", "--check", "none", "--", "rest.py") as going:
        wait_until(lambda: "phase python 2/2" in going.said, 60, lambda: going.said)
        run = launches.newest()
        source = f"PYTHONPATH={helper_program.SOURCE}"
        told = box.head.run(["env", source, sys.executable, "-c", SECOND_HEAD, run])
        refused = f"n1: OSError: another head already has run {run} on this node"
        assert told.stdout.splitlines() == [refused, *[f"n1: wrong key for run {run}"] * 2], told.stderr
        launches.put("go", "")
        assert going.wait(60) == 0
    assert {event["kind"] for event in launches.events(run)} & {"cut", "gone", "failed"} == set()


# -- what listens or lies about --------------------------------------------------------------------------------------


def test_the_token_of_a_collective_check_is_not_on_a_command_line() -> None:
    """Any user of a node can read command lines, and with the token could speak for a rank."""
    world = World(2, about={"n1": _about(token="cafe")})  # noqa: S106 - made up
    asks = next(build_collective_probe(every=False).script(world.facts))
    assert list(asks) == ["n1", "n2"]
    for ask in asks.values():
        assert "cafe" not in " ".join(ask.fields["argv"])
        assert "cafe" in ask.fields["env"].values()


@pytest.mark.parametrize(
    "sent",
    [b"x" * (1 << 20), b'{"token": "wrong", "rank": 1, "failed": "store"}\n', b"[]\n"],
    ids=["no line end", "wrong token", "no object"],
)
def test_a_stranger_at_the_port_of_a_collective_check_is_not_heard(sent: bytes) -> None:
    """Endless lines take no memory, and a wrong token ends nothing: the stranger is disconnected, others are served."""
    listener = open_listener(0)
    roster = Roster(listener, "right", world=2, meet=60, load=60)
    roster.start()
    try:
        place = ("127.0.0.1", listener.getsockname()[1])
        with socket.create_connection(place, 3) as rank:
            rank.sendall(b'{"token": "right", "rank": 0, "here": true}\n')
            with socket.create_connection(place, 3) as stranger, suppress(ConnectionError):
                stranger.sendall(sent)
                assert stranger.recv(1) == b""
            rank.sendall(b'{"token": "right", "rank": 0, "failed": "store"}\n')
            assert json.loads(rank.recv(4096)) == {"off": {"phase": "store", "absent": [0]}}
    finally:
        roster.over.set()
        roster.join()
        # In a job the process ends: to close earlier could take the last message away from a peer that still sends.
        for key in list(roster._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


READ_COMMANDS = """
import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        print(open(path, "rb").read())
    except OSError:
        pass
"""
SECRET = "hf_thisMustNotBeSeen"  # noqa: S105 - it opens nothing


@pytest.mark.ground
def test_a_secret_of_a_detached_run_is_on_no_command_line(box: Sandbox) -> None:
    """Another user who reads /proc/*/cmdline on the head finds no value of --env or --set while the run lasts."""
    launches = Launches(box, folder="/shared/secret")
    launches.put("wait.py", "import os, time; print(len(os.environ['HF_TOKEN'])); time.sleep(600)\n")
    words = (
        "--env",
        f"WANDB_API_KEY={SECRET}",
        f"--env=OTHER_TOKEN={SECRET}",
        "--set",
        f"cluster.env.HF_TOKEN={SECRET}",
    )
    started = launches.aboard("launch", "--detach", "--check", "none", *words, "--", "wait.py")
    run = launches.newest()
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        said = run_as(ATTACKER, READ_COMMANDS)
        assert "wait.py" in said
        assert SECRET not in said
    finally:
        launches.aboard("stop", run)


# Tries each socket and file below a directory, also by names that it can't list.
PRY = """
import os, socket, sys
reached = []
for path in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as link:
            try:
                link.connect(path)
                reached.append(path)
            except PermissionError:
                pass
    for act in (os.listdir, os.stat, os.unlink, open):
        try:
            act(path if act is open else os.path.dirname(path))
            reached.append((act.__name__, path))
        except PermissionError:
            pass
print(reached)
"""


def test_the_sockets_of_a_run_are_out_of_reach_for_other_users() -> None:
    """Neither the supervisor's nor the beacons' socket can be reached, nor anything beside them be read or removed."""
    run = Run()
    seen: list[str] = []

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="0", argv=(sys.executable, "-c", "import time; time.sleep(60)"), beacon=True))
        await until(lambda: "phase" in run.kinds("0"))
        names = sorted(path.name for path in run.place.iterdir())
        assert {"supervisor.sock", "beacon.sock", "beacon"} <= set(names)
        seen.append(run_as(ATTACKER, PRY, *(str(run.place / name) for name in names)))

    held(run, story)
    assert seen == ["[]\n"]


@pytest.mark.ground
def test_a_conductors_socket_is_out_of_reach_for_other_users(box: Sandbox) -> None:
    """Another user of the head can neither ask a run for its state nor stop it."""
    launches = Launches(box)
    before = launches.newest()
    with launches.going("launch", "--", "/bin/sleep", "60") as going:
        wait_until(lambda: launches.newest() != before and "phase started 2/2" in going.said, 60, lambda: going.said)
        [socket_path] = launches.runs.joinpath(launches.newest()).glob("*.sock")
        inside = str(socket_path).partition("/root")[2]
        with attacking(box.head, PRY, inside) as attacker:
            assert attacker.wait(20) == 0, attacker.said
            assert attacker.said == "[]\n"


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_records_and_caches_that_somebody_else_made_are_not_used(tmp_path: Path, variable: str) -> None:
    """Where others made the directory first, Aboard names its owner: a planted record would name what runs."""
    folder = tmp_path / "shared/aboard"
    (folder / "trust").mkdir(parents=True)
    change = {"path": ".bashrc", "before": "ZXZpbA==", "after": hashlib.sha256(b"mine").hexdigest(), "lines": []}
    machine: dict[str, Any] = {"name": "", "address": None, "user": None, "port": None, "directories": [], "keys": []}
    (folder / "trust/head.json").write_text(json.dumps({**machine, "changes": [change]}))
    os.chown(folder, ATTACKER, ATTACKER)
    (tmp_path / ".bashrc").write_text("mine")
    environment = {**os.environ, "HOME": str(tmp_path), variable: str(tmp_path / "shared")}
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "aboard", "trust", "--undo"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, f"belongs to uid {ATTACKER}" in ran.stderr) == (3, True), ran.stderr
    assert (tmp_path / ".bashrc").read_text() == "mine"


def test_a_directory_of_ours_that_others_could_write_to_is_closed(tmp_path: Path) -> None:
    """With a lax umask, the directory of records is made writable for the user alone."""
    (tmp_path / "state/aboard").mkdir(parents=True)
    (tmp_path / "state/aboard").chmod(0o777)
    require_own_folders({"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")})
    assert (tmp_path / "state/aboard").stat().st_mode & 0o777 == 0o755
