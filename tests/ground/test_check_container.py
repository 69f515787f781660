"""`aboard check` with containers: the right code on the right node, and nothing is left there."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from launching import build_sandbox

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.containers import ImageDiffers, ImageMissing, NoRuntime, NoSubordinateIds

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("check-container")]

CLUSTER = "cluster: {{nodes: ['n[1-2]'], workdir: /shared, container: {{runtime: {}, image: {}{}}}}}\n"
IMAGES = {"apptainer": "/opt/images/train.sif", "podman": "train"}
# Containers, the directories of agents and of runtimes, and what Podman has stored.
LOOK = """
ls -d /tmp/* | grep -v containers-user
podman ps --all --quiet
find ~/.local/share/containers/storage/vfs-containers -mindepth 1 -maxdepth 1 -type d
podman image inspect --format '{{.Id}}' train
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    with build_sandbox("check-container", nodes=2, containers=True) as made:
        yield made


def check(box: Sandbox, runtime: str, *subjects: str, more: str = "") -> list[tuple[str, list[str]]]:
    """The codes that a check finds, with their nodes."""
    box.head.run(
        ["sh", "-c", "cat > aboard.yaml"], input=CLUSTER.format(runtime, IMAGES[runtime], more)
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


@pytest.mark.parametrize(
    ("fault", "runtime", "code"),
    [
        (ImageDiffers(), "apptainer", "container-image-differs"),
        (ImageMissing(), "podman", "container-image-missing"),
        (NoRuntime(), "apptainer", "container-runtime-missing"),
        pytest.param(ImageDiffers(), "podman", "container-image-differs", marks=pytest.mark.nightly),
        pytest.param(ImageMissing(), "apptainer", "container-image-missing", marks=pytest.mark.nightly),
        pytest.param(NoRuntime(runtime="podman"), "podman", "container-runtime-missing", marks=pytest.mark.nightly),
        pytest.param(NoSubordinateIds(), "podman", "container-subordinate-ids", marks=pytest.mark.nightly),
    ],
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
