"""A container that does not start on one node: the launch names the node, the cause and a command."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from launching import Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("container-refusals")]

_FOREIGN = """
import re
image = bytearray(open("/opt/images/train.sif", "rb").read())
for found in re.finditer(rb"02\\0", bytes(image)):
    image[found.start():found.start() + 2] = b"04"
open("/opt/images/here.sif", "wb").write(image)
"""
# The first call of a user starts a process that keeps the user namespace for further ones.
_AFRESH = "su crew -c 'podman system migrate'"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What is wrong on n2, by lines of root there; every node has a usable /opt/images/here.sif before."""

    name: str
    code: str
    fix: str
    lines: str = "true"
    container: str = "runtime: apptainer, image: /opt/images/here.sif"
    env: str = ""


PODMAN = "runtime: podman, image: train"
MISSING = Refusal(
    name="image missing",
    code="container-image-missing",
    fix="for node in n2; do scp -3 n1:",
    lines="rm /opt/images/here.sif",
)
REFUSALS = [
    Refusal(
        name="image unreadable",
        code="container-image-permission",
        fix="namei -l /opt/images/here.sif    # on n2",
        lines="chmod 0 /opt/images/here.sif",
    ),
    Refusal(
        name="image cut",
        code="container-image-invalid",
        fix="ls -l /opt/images/here.sif; sha256sum",
        lines="truncate -s -4096 /opt/images/here.sif",
    ),
    Refusal(
        name="no image",
        code="container-image-invalid",
        fix="ls -l /opt/images/here.sif; sha256sum",
        lines="echo text > /opt/images/here.sif",
    ),
    Refusal(
        name="architecture", code="container-architecture", fix="uname -m    # on n2", lines=f"python3 -c '{_FOREIGN}'"
    ),
    Refusal(
        name="no space",
        code="container-no-space",
        fix="df -h /tmp    # on n2",
        lines="mount -t tmpfs -o size=16k none /scratch; chmod 777 /scratch",
        env="APPTAINER_TMPDIR: /scratch",
    ),
    Refusal(
        name="bind missing",
        code="container-bind",
        fix="ls -ld /scratch    # on n2",
        lines="rmdir /scratch",
        container="runtime: apptainer, image: /opt/images/here.sif, binds: [/scratch]",
    ),
    Refusal(
        name="podman bind missing",
        code="container-bind",
        fix="ls -ld /scratch    # on n2",
        lines="rmdir /scratch",
        container=f"{PODMAN}, binds: [/scratch]",
    ),
    Refusal(
        name="podman image missing",
        code="container-image-missing",
        fix="for node in n2; do ssh n1 podman save train |",
        lines="su crew -c 'podman rmi train'",
        container=PODMAN,
    ),
    Refusal(
        name="podman without newuidmap",
        code="container-subordinate-ids",
        fix="ls -l /usr/bin/newuidmap",
        lines=f"{_AFRESH}; chmod u-s /usr/bin/newuidmap",
        container=PODMAN,
    ),
    Refusal(
        name="podman missing",
        code="container-runtime-missing",
        fix="command -v podman    # on n2",
        lines="rm /usr/bin/podman",
        container=PODMAN,
    ),
]


@pytest.fixture
def hosts() -> Iterator[Launches]:
    """Two nodes that run containers; each test breaks the second."""
    with build_sandbox("container-refusals", nodes=2, slots=1, containers=True) as box:
        for node in box.nodes:
            lines = "cp /opt/images/train.sif /opt/images/here.sif; install -d -m 777 /scratch"
            node.run(["sh", "-euc", lines], root=True).check_returncode()
        yield Launches(box)


def test_a_missing_image_is_named(hosts: Launches) -> None:
    """With its node, its rank, and the command that copies it from the other node."""
    _require_verdict(hosts, MISSING)


@pytest.mark.nightly
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_each_refusal_is_named(hosts: Launches, refusal: Refusal) -> None:
    """With its node, its rank, and a command for it."""
    _require_verdict(hosts, refusal)


def test_a_launch_is_blocked_before_its_ranks_start(hosts: Launches) -> None:
    """The quick check names an invalid image, a missing bind and a missing Python, and starts no rank."""
    for node in hosts.box.nodes:
        node.run(["sh", "-c", "echo text > /opt/images/here.sif"], root=True).check_returncode()
    image = "runtime: apptainer, image: /opt/images/train.sif"
    for container, code in (
        ("runtime: apptainer, image: /opt/images/here.sif", "container-image-invalid"),
        (f"{image}, binds: [/nowhere]", "container-bind"),
        (f"{image}, python: /nowhere/python", "container-program-missing"),
    ):
        hosts.put("aboard.yaml", f"cluster:\n  nodes: ['n[1-2] slots=1']\n  container: {{{container}}}\n")
        done = hosts.aboard("launch", "--", "job.py")
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"✗ {code}  n[1-2]" in done.stdout
        assert "! unknown-software" not in done.stdout


def _require_verdict(hosts: Launches, refusal: Refusal) -> None:
    done = hosts.box.nodes[1].run(["bash", "-uc", refusal.lines], root=True)
    assert done.returncode == 0, done.stderr
    env = f"  env: {{{refusal.env}}}\n" if refusal.env else ""
    hosts.put("aboard.yaml", f"cluster:\n  nodes: ['n[1-2] slots=1']\n  container: {{{refusal.container}}}\n{env}")
    ran = hosts.launch("--check", "none", "--", "job.py")
    verdict = ran.verdict
    assert (verdict["code"], verdict["nodes"], verdict["ranks"]) == (refusal.code, ["n2"], [1]), ran.said
    assert verdict["fix"].startswith(refusal.fix), verdict["fix"]
