"""`aboard check` with containers: the right code on the right node, and nothing is left there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import PYTHON, build_sandbox

import aboard
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import FAULTS, inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.containers import (
    ContainerFault,
    ImageDiffers,
    ImageMissing,
    NoRuntime,
    NoSubordinateIds,
)

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("check-container")]

CLUSTER = "cluster: {{nodes: ['n[1-2]'], workdir: /shared, container: {{runtime: {}, image: {}{}}}}}\n"
IMAGES = {"apptainer": "/opt/images/train.sif", "podman": "train"}
# Containers, the directories of agents and of runtimes, and what Podman has stored.
LOOK = """
ls -d /tmp/* | grep -v -e containers-user -e /crun
podman ps --all --quiet
find ~/.local/share/containers/storage/vfs-containers -mindepth 1 -maxdepth 1 -type d
podman image inspect --format '{{.Id}}' train
"""

# Three requests at once, of which the last never ends; the image is unpacked once for all.
ASK = """
import asyncio, sys
from aboard.core.cluster.node import Node
from aboard.transport.node_dialer import NodeDialer

async def ask():
    link = (await NodeDialer().dial(Node(name="n2"))).link
    container = {"runtime": sys.argv[1], "image": sys.argv[2]}
    script = "import os, sys, time; print(os.environ.get('APPTAINER_CONTAINER')); time.sleep(int(sys.argv[1]))"
    asks = [
        link.ask("run", 200, argv=["python3", "-c", script, wait], timeout=float(within), container=container)
        for wait, within in (("0", "100"), ("0", "100"), ("1000", "15"))
    ]
    for reply in await asyncio.gather(*asks):
        print(bool(reply.get("timed_out")), reply["stdout"].strip())
    await link.close()

asyncio.run(ask())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    with build_sandbox("check-container", nodes=2, containers=True) as made:
        yield made


def check(box: Sandbox, runtime: str, *subjects: str, more: str = "") -> list[tuple[str, list[str]]]:
    """The codes that a check finds, with their nodes."""
    box.head.run(
        ["sh", "-c", "cat > aboard.yaml && aboard allow"], input=CLUSTER.format(runtime, IMAGES[runtime], more)
    ).check_returncode()
    only = [word for subject in subjects for word in ("--only", subject)]
    done = box.head.run(["aboard", "check", "--json", *only], timeout=180)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return [(finding["code"], finding["nodes"]) for finding in report["findings"]]


def look(box: Sandbox) -> list[str]:
    return [node.run(["sh", "-c", LOOK]).stdout for node in box.nodes]


@pytest.mark.parametrize("runtime", ["apptainer", "podman"])
def test_healthy_hosts_pass_inside(cluster: Sandbox, runtime: str) -> None:
    """The container starts, ranks inside see what the node has, and nothing is left."""
    before = look(cluster)
    assert check(cluster, runtime, "container", "software") == []
    assert look(cluster) == before


CASES = [
    (ImageDiffers(), "apptainer", "container-image-differs"),
    (ImageMissing(), "podman", "container-image-missing"),
    (NoRuntime(), "apptainer", "container-runtime-missing"),
]
NIGHTLY_CASES = [
    (ImageDiffers(), "podman", "container-image-differs"),
    (ImageMissing(), "apptainer", "container-image-missing"),
    (NoRuntime(runtime="podman"), "podman", "container-runtime-missing"),
    (NoSubordinateIds(), "podman", "container-subordinate-ids"),
]


def test_cases_are_complete() -> None:
    """Every fault of containers is injected and healed here."""
    tried = {type(case[0]) for case in (*CASES, *NIGHTLY_CASES)}
    assert tried == {kind for kind in FAULTS if issubclass(kind, ContainerFault)}


@pytest.mark.parametrize(
    ("fault", "runtime", "code"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY_CASES)],
    ids=lambda each: each.name if isinstance(each, Fault) else str(each),
)
def test_a_fault_is_named(cluster: Sandbox, fault: Fault, runtime: str, code: str) -> None:
    """The finding is the only one, on the node with the fault; healing leaves no trace."""
    before = look(cluster)
    with inject_temporarily(cluster, cluster.host("n2"), fault):
        assert check(cluster, runtime, "container", "software") == [(code, ["n2"])]
    assert look(cluster) == before


@pytest.mark.nightly
def test_options_that_take_something_away_are_named(cluster: Sandbox) -> None:
    """Shared memory, limits and the interpreter inside differ from the node's."""
    small = ", options: ['--ipc=private', '--shm-size=64m', '--ulimit=nofile=1000:1000']"
    nodes = ["n1", "n2"]
    assert sorted(check(cluster, "podman", "container", more=small)) == [
        ("container-limits", nodes),
        ("container-shm", nodes),
    ]
    assert check(cluster, "apptainer", "container", more=", python: python9") == [("container-program-missing", nodes)]


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", ["apptainer", "podman"])
def test_a_collective_runs_inside(cluster: Sandbox, runtime: str) -> None:
    """Ranks in containers on two hosts meet, and their sums are right."""
    before = look(cluster)
    assert check(cluster, runtime, "collective") == []
    assert look(cluster) == before


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", ["apptainer", "podman"])
def test_a_request_that_never_ends_leaves_nothing(cluster: Sandbox, runtime: str) -> None:
    """Its container is removed, and the image that was unpacked once for all requests."""
    before = look(cluster)
    source = f"PYTHONPATH={Path(aboard.__file__).parents[1]}"
    done = cluster.head.run(["env", source, PYTHON, "-c", ASK, runtime, IMAGES[runtime]], timeout=300)
    replies = [line.split() for line in done.stdout.splitlines()]
    assert [timed_out for timed_out, *_ in replies] == ["False", "False", "True"], done.stderr
    assert replies[0] == replies[1]
    assert ("/ask-" in replies[0][1]) is (runtime == "apptainer")
    assert look(cluster) == before
