"""Storage: recorded answers to facts, facts to findings, the exchange by its replies, and the script for real."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import ProbeRequest
from aboard.core.probes.probe import CommandOutput, ProbeParseError
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.storage.node_storage import parse_storage
from aboard.doctor.storage.shared_workdir import EXCHANGE, WorkdirSharing, WriteTrial
from aboard.doctor.storage.subject import SUBJECT
from aboard.node_scripts.script_source import read_script

GIB = 1 << 30
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
NFS = {"mount": "/job", "type": "nfs4", "source": "fs:/job", "network": True}
PLACE: dict[str, Any] = {
    "path": "/job",
    "mount": "/",
    "type": "ext4",
    "source": "/dev/sda1",
    "network": False,
    "size": 500 * GIB,
    "free": 200 * GIB,
    "inodes": 10_000_000,
    "inodes_free": 5_000_000,
    "read_only": False,
    "writable": True,
    "owner": 1000,
}
DEAD = {"point": "/mnt/a b", "type": "nfs", "source": "old:/x", "network": True, "why": "no answer within 3 s"}


def _said(told: object) -> CommandOutput:
    return CommandOutput(code=0, stdout=json.dumps(told) + "\n")


def _recorded(change: dict[str, Any], dead: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    home = {**PLACE, "path": "/home/ann"}
    return {"uid": 1000, "places": {"workdir": {**PLACE, **change}, "home": home}, "dead": list(dead)}


def _facts(
    *changes: dict[str, Any], dead: dict[int, dict[str, Any]] | None = None, sharing: WorkdirSharing | None = None
) -> Facts:
    names = [f"n{number}" for number in range(1, len(changes) + 1)]
    gone = {index: (each,) for index, each in (dead or {}).items()}
    told = [parse_storage(_said(_recorded(change, gone.get(index, ())))) for index, change in enumerate(changes)]
    return Facts(
        cluster=Cluster(nodes=tuple(Node(name=name, workdir="/job") for name in names)),
        contacts={},
        answers={"storage": dict(zip(names, told, strict=True))},
        outcomes={} if sharing is None else {EXCHANGE.name: sharing},
    )


def _told(findings: list[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.code, each.severity.word, each.nodes) for each in findings]


def test_healthy() -> None:
    """Room, rights and mounts as they should be: nothing to say."""
    assert SUBJECT.judge(_facts({}, {}, {})) == []
    assert SUBJECT.judge(_facts(NFS, NFS, sharing=WorkdirSharing(groups=(("n1", "n2"),)))) == []


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"error": "No such file or directory"}, "storage-missing", "block"),
        ({"free": 0}, "storage-full", "block"),
        ({"free": GIB - 1}, "storage-low", "warn"),
        ({"free": 4 * GIB}, "storage-low", "warn"),
        ({"inodes_free": 0}, "storage-inodes", "block"),
        ({"inodes_free": 9_000}, "storage-inodes", "warn"),
        ({"read_only": True}, "storage-read-only", "warn"),
        ({"writable": False}, "storage-read-only", "warn"),
        ({"silent": True}, "storage-dead-mount", "block"),
    ],
)
def test_one_that_is_worse(change: dict[str, Any], code: str, severity: str) -> None:
    """Each has its code and severity, and the node that has it."""
    assert _told(SUBJECT.judge(_facts({}, {}, change))) == [(code, severity, ("n3",))]


@pytest.mark.parametrize(
    "change", [{"free": 200 * GIB, "size": 10**15}, {"inodes": 0, "inodes_free": 0}, {"size": 0, "free": 0}]
)
def test_what_is_enough(change: dict[str, Any]) -> None:
    """A hundredth of a very large disk is much, and what isn't counted isn't short."""
    assert SUBJECT.judge(_facts(change)) == []


@pytest.mark.parametrize(("free", "codes"), [(63 << 20, ["storage-low"]), (65 << 20, [])])
def test_little_is_enough_for_temporary_files(free: int, codes: list[str]) -> None:
    """What is short for a checkpoint is room in /tmp, down to a bar of its own."""
    said = _recorded({})
    said["places"]["tmp"] = {**PLACE, "path": "/tmp", "mount": "/tmp", "type": "tmpfs", "free": free}
    cluster = Cluster(nodes=(Node(name="n1", workdir="/job"),))
    given = Facts(cluster=cluster, contacts={}, answers={"storage": {"n1": parse_storage(_said(said))}}, outcomes={})
    assert [finding.code for finding in SUBJECT.judge(given)] == codes


def test_a_shared_disk_that_is_full_is_one_finding() -> None:
    """Nodes that tell the same are named together."""
    full = {**NFS, "free": 0}
    assert _told(SUBJECT.judge(_facts(full, full, full))) == [("storage-full", "block", ("n1", "n2", "n3"))]


def test_read_only_everywhere_may_be_meant() -> None:
    """Then it is worth a line."""
    (finding,) = SUBJECT.judge(_facts({"read_only": True}, {"read_only": True}))
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(("mount", "severity"), [("/mnt/a b", "warn"), ("/job", "block")])
def test_a_dead_mount(mount: str, severity: str) -> None:
    """It stops a run that needs it, and is a warning otherwise; its name is quoted in the fix."""
    dead = {**DEAD, "point": mount}
    place = {**dead, "mount": mount, "silent": True} if mount == "/job" else {}
    (finding,) = SUBJECT.judge(_facts({}, place, dead={1: dead}))
    assert (finding.code, finding.severity.word, finding.nodes) == ("storage-dead-mount", severity, ("n2",))
    assert finding.seen == f"{mount} (nfs from old:/x): no answer within 3 s"
    if " " in mount:
        assert finding.fix.startswith("sudo umount -l '/mnt/a b' ")


def test_not_mounted() -> None:
    """A network mount that at least half have stops a run where it is missing; a local one is a warning."""
    finding = SUBJECT.judge(_facts(NFS, {}, NFS))[0]
    assert (finding.code, finding.severity, finding.nodes) == ("storage-not-mounted", Severity.BLOCK, ("n2",))
    assert finding.fix == "sudo mount -t nfs4 fs:/job /job    # on n2"
    local = {"mount": "/job"}
    assert _told(SUBJECT.judge(_facts({}, local))) == [("storage-not-mounted", "warn", ("n1",))]
    assert SUBJECT.judge(_facts({}, local, {})) == []


@pytest.mark.parametrize(
    ("sharing", "told"),
    [
        (WorkdirSharing(groups=(("n1", "n3"),), alone=("n2",)), [("storage-not-shared", "block", ("n2",))]),
        (WorkdirSharing(groups=(("n2", "n3"),), alone=("n1",)), [("storage-not-shared", "block", ("n1",))]),
        (WorkdirSharing(groups=(("n1", "n2", "n3"),)), []),
        (WorkdirSharing(alone=("n1", "n2", "n3")), [("storage-private", "info", ("n1", "n2", "n3"))]),
        (
            WorkdirSharing(trials={"n2": WriteTrial(step="map", error=Untrusted("No such device"))}),
            [("storage-no-mmap", "warn", ("n2",))],
        ),
        (
            WorkdirSharing(trials={"n2": WriteTrial(step="write", error=Untrusted("Disk quota exceeded"))}),
            [("storage-full", "block", ("n2",))],
        ),
        (
            WorkdirSharing(trials={"n2": WriteTrial(step="write", error=Untrusted("Bad thing"))}),
            [("storage-read-only", "warn", ("n2",))],
        ),
        (WorkdirSharing(trials={"n2": WriteTrial(step="", error=Untrusted(""))}), []),
    ],
)
def test_sharing(sharing: WorkdirSharing, told: list[tuple[str, str, tuple[str, ...]]]) -> None:
    """Who has another directory than those who share one is named; nobody, if each has its own."""
    assert _told(SUBJECT.judge(_facts({}, {}, {}, sharing=sharing))) == told


def test_alone_beside_a_network_mount() -> None:
    """Of two nodes that don't see each other's files, the one without the network mount is wrong."""
    told = _told(SUBJECT.judge(_facts(NFS, {}, sharing=WorkdirSharing(alone=("n1", "n2")))))
    assert told == [("storage-not-shared", "block", ("n2",))]


class Shares:
    """Answers the rounds of an exchange as nodes with these shares would; a share of None can't be written."""

    def __init__(self, shares: dict[str, str | None]) -> None:
        self.shares = shares
        self.files: dict[str, set[str]] = {}
        self.rounds: list[tuple[str, tuple[str, ...]]] = []

    def reply(self, node: str, ask: ProbeRequest) -> dict[str, Any] | Unknown:
        what, name = ask.fields["argv"][3], (*ask.fields["argv"], "", "")[5]
        share = self.shares[node]
        files = self.files.setdefault(share or node, set())
        told: dict[str, Any] = {}
        if what == "write" and share is None:
            told = {"error": "Read-only file system"}
        elif what == "write":
            files.add(f"nonce-{node}")
            told = {"name": f"nonce-{node}", "nonce": f"of {node}"}
        elif what == "read":
            found = name in files
            told = {"nonce": name.replace("nonce-", "of ") if found else "", "mapped": {"step": "", "error": ""}}
        else:
            files.discard(name)
        return {"code": 0, "stdout": json.dumps(told), "stderr": ""}

    def run(self) -> WorkdirSharing:
        script = EXCHANGE.script(_facts(*({} for _share in self.shares)))
        asked = next(script)
        while True:
            self.rounds.append((next(iter(asked.values())).fields["argv"][3], tuple(asked)))
            try:
                asked = script.send({node: self.reply(node, ask) for node, ask in asked.items()})
            except StopIteration as done:
                outcome: WorkdirSharing = done.value
                return outcome


@pytest.mark.parametrize(
    ("shares", "groups", "alone"),
    [
        ({"n1": "a", "n2": "a", "n3": "a"}, (("n1", "n2", "n3"),), ()),
        ({"n1": "b", "n2": "a", "n3": "a"}, (("n2", "n3"),), ("n1",)),
        ({"n1": "a", "n2": "b", "n3": "a"}, (("n1", "n3"),), ("n2",)),
        ({"n1": "a", "n2": "b", "n3": "c", "n4": "d"}, (), ("n1", "n2", "n3", "n4")),
        ({"n1": None, "n2": "a", "n3": "a"}, (("n2", "n3"),), ("n1",)),
        ({"n1": None, "n2": None}, (), ("n1", "n2")),
    ],
)
def test_exchange(shares: dict[str, str | None], groups: tuple[tuple[str, ...], ...], alone: tuple[str, ...]) -> None:
    """Nodes are grouped by whose file they see, in a few rounds, and every file is taken away again."""
    cluster = Shares(shares)
    sharing = cluster.run()
    assert (sharing.groups, sharing.alone) == (groups, alone)
    assert not any(cluster.files.values())
    assert len(cluster.rounds) <= 9


def test_unknown_is_said() -> None:
    """A node whose storage can't be asked is a warning."""
    facts = Facts(
        cluster=Cluster(nodes=(Node(name="n1"),)), contacts={}, answers={"storage": {"n1": Unknown(why="late")}}
    )
    assert _told(SUBJECT.judge(facts)) == [("unknown-storage", "warn", ("n1",))]


@given(JSON)
def test_no_answer_breaks_the_parser(told: object) -> None:
    """Whatever JSON comes back is a value or Unparsed."""
    whole = _recorded({})
    for answer in (told, {**whole, "places": told}, {**whole, "places": {"workdir": told}}, {**whole, "dead": [told]}):
        try:
            parse_storage(_said(answer))
        except ProbeParseError:
            continue


def _run(*words: str) -> dict[str, Any]:
    argv = [sys.executable, "-ISc", read_script("storage_survey"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_script_looks(tmp_path: Path) -> None:
    """At the working directory, the home and the place for temporary files; a file is no directory."""
    told = parse_storage(_said(_run("look", str(tmp_path))))
    assert set(told.places) == {"workdir", "home", "tmp"}
    place = told.places["workdir"]
    assert (str(place), place.writable, len(place.trouble)) == (str(tmp_path), True, 0)
    assert place.disk is not None
    assert place.disk.size >= place.disk.free > 0
    (tmp_path / "file").touch()
    assert parse_storage(_said(_run("look", str(tmp_path / "file")))).places["workdir"].trouble == "Not a directory"
    assert "workdir" not in parse_storage(_said(_run("look", ""))).places


def test_the_script_writes_reads_and_removes(tmp_path: Path) -> None:
    """A nonce comes back as it was written, and nothing is left."""
    wrote = _run("write", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [wrote["name"]]
    read = _run("read", str(tmp_path), wrote["name"], "0")
    assert read == {"nonce": wrote["nonce"], "mapped": {"step": "", "error": ""}}
    assert _run("remove", str(tmp_path), wrote["name"]) == {}
    assert _run("read", str(tmp_path), wrote["name"], "0")["nonce"] == ""
    assert not list(tmp_path.iterdir())
    assert _run("write", "/no/such/place") == {"error": "No such file or directory"}


def test_every_code_has_a_story() -> None:
    """Each code that a rule can find is told at length."""
    words = "missing not-shared not-mounted private full low inodes read-only dead-mount no-mmap space output"
    assert {story.code for story in SUBJECT.diagnoses} == {
        *(f"storage-{word}" for word in words.split(" ")),
        "unknown-storage",
        "unknown-storage-room",
    }
