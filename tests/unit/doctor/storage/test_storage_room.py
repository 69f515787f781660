"""Room for the run: what `run:` says it will write, against recorded disks; and the question, asked for real."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster, PlannedWrites
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.probe import CommandOutput
from aboard.diagnoses import Finding
from aboard.doctor.storage.node_storage import parse_directory, parse_storage
from aboard.doctor.storage.output_space import OUTPUT_SPACE, measure_output_space
from aboard.doctor.storage.subject import SUBJECT
from aboard.node_scripts.script_source import read_script

GIB = 1 << 30
WRITES = PlannedWrites(path="/data/out", size=200 * GIB)
PLACE: dict[str, Any] = {
    "path": "/data/out",
    "mount": "/data",
    "type": "ext4",
    "source": "/dev/sdb1",
    "network": False,
    "size": 1000 * GIB,
    "free": 300 * GIB,
    "inodes": 10_000_000,
    "inodes_free": 5_000_000,
    "read_only": False,
    "writable": True,
    "owner": 1000,
}
NFS = {"mount": "/data", "type": "nfs4", "source": "fs:/data", "network": True}
HERE = ReachedNode(hostname="n", user="ann", address="10.0.0.1", python="3.12", round_trip=0.0, clock_offset=0.0)
HOME = {**PLACE, "path": "/home/ann", "mount": "/", "source": "/dev/sda1"}


def _output(told: object) -> CommandOutput:
    return CommandOutput(code=0, stdout=json.dumps(told) + "\n")


def _facts(
    *changes: dict[str, Any] | None, workdir: dict[str, Any] | None = None, dead: tuple[dict[str, Any], ...] = ()
) -> Facts:
    """Nodes n1, n2, … whose output directory is so; None is one that could not be asked."""
    names = [f"n{number}" for number in range(1, len(changes) + 1)]
    places = {"home": HOME, **({"workdir": {**PLACE, "path": "/data/job", **workdir}} if workdir else {})}
    storage = parse_storage(_output({"uid": 1000, "places": places, "dead": list(dead)}))
    rooms = [
        Unknown(why="late") if change is None else parse_directory(_output({**PLACE, **change})) for change in changes
    ]
    return Facts(
        cluster=Cluster(nodes=tuple(Node(name=name, workdir="/data/job") for name in names), writes=WRITES),
        contacts=dict.fromkeys(names, HERE),
        answers={"storage": dict.fromkeys(names, storage)},
        outcomes={OUTPUT_SPACE.name: dict(zip(names, rooms, strict=True))},
    )


def _told(findings: list[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.code, each.severity.word, each.nodes) for each in findings]


def test_enough_is_enough() -> None:
    """Room for what is wanted, to the byte, is nothing to speak of; a disk that counts nothing is not short."""
    assert SUBJECT.judge(_facts({}, {"free": 200 * GIB}, {"size": 0, "free": 0})) == []


def test_too_little_stops_a_run() -> None:
    """The node, the numbers and what to type are named."""
    (finding,) = SUBJECT.judge(_facts({}, {"free": 200 * GIB - (3 << 29)}))
    assert _told([finding]) == [("storage-space", "block", ("n2",))]
    assert finding.seen == (
        "the run will write 200 GiB to /data/out; 198 GiB of 1000 GiB is free there (ext4 on /data), 1.5 GiB short"
    )
    assert finding.fix.startswith("ssh n2 'du -xh --max-depth=1 /data 2>/dev/null | sort -h | tail'    # here; ")


def test_a_shared_disk_is_told_once() -> None:
    """With the least that a node saw; disks of their own are told together only if they are alike to the byte."""
    (finding,) = SUBJECT.judge(_facts({**NFS, "free": 5 * GIB}, {**NFS, "free": 4 * GIB}))
    assert finding.nodes == ("n1", "n2")
    assert "4 GiB of 1000 GiB is free there (nfs4 on /data, shared by n[1-2])" in finding.seen
    own = {"free": 5 * GIB}
    assert _told(SUBJECT.judge(_facts(own, {"free": 4 * GIB}, own))) == [
        ("storage-space", "block", ("n1", "n3")),
        ("storage-space", "block", ("n2",)),
    ]


def test_a_disk_that_is_too_small_is_not_told_as_full_too() -> None:
    """The working directory is on the same disk: one finding, the one with what the run needs."""
    assert _told(SUBJECT.judge(_facts({"free": 0}, workdir={"free": 0}))) == [("storage-space", "block", ("n1",))]
    assert _told(SUBJECT.judge(_facts({}, workdir={"free": 0}))) == [("storage-full", "block", ("n1",))]


@pytest.mark.parametrize(("left", "severity"), [(0, "block"), (9_000, "warn")])
def test_files_run_out_too(left: int, severity: str) -> None:
    """Room in bytes and none for a file is told of the output directory as of the others."""
    assert _told(SUBJECT.judge(_facts({"inodes_free": left}))) == [("storage-inodes", severity, ("n1",))]


@pytest.mark.parametrize(
    "change", [{"writable": False}, {"read_only": True}, {"error": "Not a directory", "errno": 20}]
)
def test_where_nothing_can_be_written(change: dict[str, Any]) -> None:
    """It stops a run on the first node, where rank 0 is, and warns elsewhere."""
    assert _told(SUBJECT.judge(_facts(change, {}))) == [("storage-output", "block", ("n1",))]
    assert _told(SUBJECT.judge(_facts({}, change))) == [("storage-output", "warn", ("n2",))]


def test_unknown_is_said_and_never_taken_for_enough() -> None:
    """Nodes without an answer, or whose disk doesn't answer, are one warning."""
    findings = SUBJECT.judge(_facts({}, None, {"silent": True}))
    assert _told(findings) == [("unknown-storage-room", "warn", ("n2", "n3"))]
    assert "could not check whether /data/out has room for 200 GiB: it does not respond and late" in findings[0].seen


def test_a_dead_mount_that_the_run_writes_to_stops_it() -> None:
    """It is told as what it is, and worse than one that nobody needs."""
    dead = {"point": "/data", "type": "nfs4", "source": "fs:/data", "network": True, "why": "no answer within 3 s"}
    silent = _facts({**NFS, "silent": True}, dead=(dead,))
    assert _told(SUBJECT.judge(silent)) == [("storage-dead-mount", "block", ("n1",))]


def test_nobody_is_asked_when_nothing_is_said() -> None:
    """Without the section, and for a node that starts no rank, there is no question."""
    facts = _facts({}, {})
    assert list((next(measure_output_space(facts))).keys()) == ["n1", "n2"]
    for cluster in (
        Cluster(nodes=facts.cluster.nodes),
        Cluster(nodes=(Node(name="n1", slots=0),), writes=WRITES),
    ):
        quiet = Facts(cluster=cluster, contacts=facts.contacts, answers=facts.answers)
        with pytest.raises(StopIteration) as done:
            next(measure_output_space(quiet))
        assert done.value.value == {}
        assert SUBJECT.judge(quiet) == []


def test_what_comes_back_is_read_or_unknown() -> None:
    """A reply that is none doesn't keep the others from being read."""
    script = measure_output_space(_facts({}, {}, {}))
    next(script)
    with pytest.raises(StopIteration) as done:
        script.send(
            {
                "n1": {"code": 0, "stdout": json.dumps(PLACE), "stderr": ""},
                "n2": {"code": 0, "stdout": "{}", "stderr": ""},
                "n3": Unknown(why="gone"),
            }
        )
    found = done.value.value
    assert found["n1"].disk.free == 300 * GIB
    unreadable = Unknown(why="its output can't be parsed: path is missing")
    assert (found["n2"], found["n3"]) == (unreadable, Unknown(why="gone"))


def test_the_script_looks_at_what_is_there(tmp_path: Path) -> None:
    """A directory that the run will make is judged by the nearest one above it; a file is none."""
    (tmp_path / "file").touch()
    for path, trouble in ((tmp_path / "a" / "b", ""), (tmp_path, ""), (tmp_path / "file", "Not a directory")):
        argv = [sys.executable, "-ISc", read_script("storage_survey"), "room", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
        place = parse_directory(CommandOutput(code=0, stdout=done.stdout))
        assert (str(place), place.trouble.visible(), place.writable) == (str(path), trouble, not trouble)
        assert (place.disk is not None and place.disk.free > 0) == (not trouble)
