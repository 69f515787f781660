"""Attacks by another user of a node or of the head, without any right of ours."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from deadlines import wait_until
from launching import Launches, build_sandbox
from other_users import ATTACKER, VICTIM, run_as

from aboard.agent.transfer.partial_file import part_name
from aboard.flows.sync.download_target import DownloadTarget, WantedFile
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.namespaces import helper_program


def test_users_are_other_uids() -> None:
    """The actors of this file are neither root nor each other."""
    uids = [int(run_as(uid, "import os; print(os.getuid())")) for uid in (VICTIM, ATTACKER)]
    assert uids == [VICTIM, ATTACKER]


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
