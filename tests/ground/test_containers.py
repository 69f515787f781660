"""Ranks in real containers on two hosts: what they find inside, one unpack per node, and nothing left outside."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from launching import Launches, build_sandbox

from aboard.sandbox import Host, Sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("containers")]

SECRET = "hf_very_secret"  # noqa: S105 - nobody's
# Each rank writes what it sees; command lines of others are visible only without a PID namespace.
REPORT = """
import json, os, sys
from pathlib import Path

def read_command_line(process):
    try:
        return (process / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""

lines = [read_command_line(process) for process in Path("/proc").glob("[0-9]*")]
names = ("HOME", "HF_TOKEN", "ODD", "PYTHONPATH", "VIRTUAL_ENV", "APPTAINER_CONTAINER", "container")
report = {name: os.environ.get(name) for name in names}
report["leaks"] = [line for line in lines if os.environ["HF_TOKEN"] in line]
report["python"] = sys.executable
report["modules"] = sys.path
report["cwd"] = os.getcwd()
report["token"] = (Path.home() / ".netrc").read_text()
Path(f"report-{os.environ['RANK']}.json").write_text(json.dumps(report))
"""


@pytest.fixture(scope="module")
def launches() -> Iterator[Launches]:
    """Two nodes of two slots that can run containers."""
    with build_sandbox("containers", nodes=2, slots=2, containers=True) as box:
        launches = Launches(box, slots=2)
        launches.put("report.py", REPORT)
        for node in box.nodes:
            node.run(["sh", "-c", "echo token > ~/.netrc"]).check_returncode()
        yield launches


def run_in_container(launches: Launches, container: str) -> list[dict[str, Any]]:
    """Each rank's report, from a login whose own Python must not be seen inside."""
    launches.put(
        "aboard.yaml",
        "cluster:\n  nodes: ['n[1-2] slots=2']\n  setup: [export PYTHONPATH=/outside VIRTUAL_ENV=/outside]\n"
        f"  container: {container}\n",
    )
    ran = launches.launch("--check", "none", "--", "report.py", env=(f"HF_TOKEN={SECRET}", "ODD=a\nb $HOME 'c'"))
    assert ran.code == 0, ran.said
    heard = [event for event in launches.events(ran.run) if event["kind"] == "phase"]
    assert {event["rank"] for event in heard} == {0, 1, 2, 3}
    assert launches.orphans(ran.run) == {}
    return [read_report(launches.box.head, launches.folder, rank) for rank in range(4)]


def read_report(head: Host, folder: str, rank: int) -> dict[str, Any]:
    done = head.run(["cat", f"{folder}/report-{rank}.json"])
    report: dict[str, Any] = json.loads(done.stdout)
    owner = head.run(["stat", "-c", "%U", f"{folder}/report-{rank}.json"]).stdout.strip()
    return {**report, "owner": owner}


def check_common(report: dict[str, Any], folder: str) -> None:
    """What is the same inside of every runtime as outside."""
    assert (report["HOME"], report["cwd"], report["token"]) == ("/home/crew", folder, "token\n")
    assert (report["HF_TOKEN"], report["ODD"], report["leaks"]) == (SECRET, "a\nb $HOME 'c'", [])
    assert report["owner"] == "crew"
    assert not [path for path in report["modules"] if "outside" in path]


def list_leftovers(box: Sandbox) -> list[str]:
    """Directories of runs and of unpacked images, and containers."""
    look = "ls -d /tmp/aboard-* /tmp/rootfs-* /tmp/build-temp-* 2>/dev/null; podman ps --all --quiet"
    return [line for node in box.nodes for line in node.run(["sh", "-c", look]).stdout.split()]


def test_apptainer(launches: Launches) -> None:
    """All ranks of a node run from one unpacked image, with the image's Python and the user's home and variables."""
    reports = run_in_container(launches, "{runtime: apptainer, image: /opt/images/train.sif}")
    for report in reports:
        check_common(report, launches.folder)
        assert report["APPTAINER_CONTAINER"].endswith("/images/0")
        assert report["VIRTUAL_ENV"] is None
    assert list_leftovers(launches.box) == []


def test_podman(launches: Launches) -> None:
    """Ranks see the user's home and variables as outside, and write files as the user."""
    for report in run_in_container(launches, "{runtime: podman, image: train}"):
        check_common(report, launches.folder)
        assert report["container"] == "podman"
        assert report["VIRTUAL_ENV"] is None
    assert list_leftovers(launches.box) == []


def test_a_launch_takes_over_the_image_of_its_check(launches: Launches) -> None:
    """The check before a launch unpacks the image, and the ranks run from that copy."""
    launches.put(
        "aboard.yaml",
        "cluster:\n  nodes: ['n[1-2] slots=2']\n  container: {runtime: apptainer, image: /opt/images/train.sif}\n",
    )
    ran = launches.launch("--", "report.py", env=(f"HF_TOKEN={SECRET}",))
    assert ran.code == 0, ran.said
    assert "unpacking" not in {event["kind"] for event in launches.events(ran.run)}
    report = read_report(launches.box.head, launches.folder, 0)
    assert report["APPTAINER_CONTAINER"].endswith("/images/0")
    assert list_leftovers(launches.box) == []
