"""Attacks by a node: its agent, its files and its network send whatever they like."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deadlines import until, within
from launching import Launches

from aboard.agent import frames
from aboard.commands.trust.home_files import KNOWN_HOSTS, HomeFiles
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, ProtocolError
from aboard.record.measurement_log import MeasurementLog, NodeMeasurement, read_measurements
from aboard.record.rank_logs.log_writer import LogLimits, LogWriter
from aboard.record.trust_record import TrustRecords
from aboard.sandbox import Host, Sandbox
from aboard.transport.agent_bootstrap import START_TASK, build_bootstrap
from aboard.transport.agent_link import AgentLink
from aboard.transport.files.tree_sender import TreeSender
from aboard.transport.node_session import MOST_SHARE
from aboard.transport.shell.ssh_login import open_local_shell
from aboard.transport.slurm.slurm_transport import SlurmTransport
from aboard.transport.slurm.srun_step import SrunStep
from aboard.transport.subprocess_stream import start_program

# Takes the place of python3 on a node and plays a supervisor. The bootstrap's marker is in what it reads.
ACTED_AGENT = """#!/usr/bin/python3
import json, os, re, sys, time
for _ in range(2):
    sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
marker = re.search(rb"main\\(b'\\\\n(<aboard [0-9a-f]+>)", sys.stdin.buffer.readline())[1]
out, number = sys.stdout.buffer, 0
def send(**message):
    body = json.dumps(message).encode()
    out.write(len(body).to_bytes(4, "big") + body)
def event(kind, **fields):
    global number
    number += 1
    send(event=number, kind=kind, wall=time.time(), **fields)
def attack():
ACT
out.write(b"\\n" + marker + b"\\n")
send(hello=1, hostname="n2", user="crew", python="3.11", address="")
out.flush()
while size := sys.stdin.buffer.read(4):
    body = sys.stdin.buffer.read(int.from_bytes(size, "big"))
    if body[:1] == b"\\0":
        body = body[5:5 + int.from_bytes(body[1:5], "big")]
    question = json.loads(body)
    if "id" in question:
        send(re=question["id"], wall=time.time(), children=CHILDREN, lost_events=0, port=29500)
    if question["op"] == "start":
        event("started", child=question["child"], pid=1)
        attack()
        event("exited", child=question["child"], code=0)
    if question["op"] == "attach":
        number = question["acked"]
        attack()
        event("exited", child="1", code=0)
    if question["op"] == "end":
        event("ended", killed=0)
        send(gone=True)
    out.flush()
"""


def _act(attack: str, children: str = "{}") -> str:
    body = "".join(f"    {line}\n" for line in attack.strip().splitlines())
    return ACTED_AGENT.replace("ACT\n", body).replace("CHILDREN", children)


@contextmanager
def acting(host: Host, script: str) -> Iterator[None]:
    """The host's agent is this script for the block."""
    install = ["sh", "-c", "cat > /usr/local/bin/python3.new && chmod 755 /usr/local/bin/python3.new"]
    keep = ["sh", "-c", "[ ! -e /usr/local/bin/python3 ] || mv /usr/local/bin/python3 /usr/local/bin/python3.old"]
    host.run(keep, root=True).check_returncode()
    host.run(install, root=True, input=script).check_returncode()
    host.run(["mv", "/usr/local/bin/python3.new", "/usr/local/bin/python3"], root=True).check_returncode()
    try:
        yield
    finally:
        undo = "rm /usr/local/bin/python3; [ ! -e $0.old ] || mv $0.old $0"
        host.run(["sh", "-c", undo, "/usr/local/bin/python3"], root=True).check_returncode()


def _prepare(box: Sandbox, name: str, *, seconds: float) -> Launches:
    """Launches by the python3 of each node, whose ranks sleep."""
    launches = Launches(box, folder=f"/shared/{name}")
    launches.put("aboard.yaml", "cluster:\n  nodes: ['n[1-2] slots=1']\n")
    launches.put("sleep.py", f"import time; time.sleep({seconds})")
    return launches


def _measure_folder(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# 43 MB, 18 kB at a time: the limits of each text leave that much.
FLOOD = """
while number < 2400:
    event("raised", child="1", type="E", message="m" * 1900, trace="t" * 7900, error="e" * 7900)
"""


@pytest.mark.ground
def test_a_node_that_floods_events_does_not_fill_the_disk(box: Sandbox) -> None:
    """The events of one node stay below its budget; what was dropped is in the summary, the record and `why`."""
    launches = _prepare(box, "flood", seconds=3)
    with acting(box.host("n2"), _act(FLOOD)):
        ran = launches.launch("--check", "none", "--", "sleep.py")
    assert ran.code == 0, ran.said
    assert _measure_folder(launches.runs / ran.run) < 35_000_000
    assert "n2 sent more events than a run keeps" in ran.said
    why = launches.aboard("why", ran.run)
    assert "n2 sent more events than a run keeps" in why.stdout
    kinds = [(event["node"], event["kind"], event.get("rank")) for event in launches.events(ran.run)]
    assert ("n2", "exited", 1) in kinds
    assert ("n1", "exited", 0) in kinds


@pytest.mark.ground
def test_a_node_that_invents_ranks_changes_nothing(box: Sandbox) -> None:
    """Ranks that were never started neither end the run, nor appear in its record."""
    launches = _prepare(box, "invent", seconds=1)
    invented = json.dumps({f"evil{number}": {} for number in range(4000)})
    attack = """
if question["op"] == "start":
    for evil in range(4000):
        event("exited", child="evil%d" % evil, code=1)
"""
    with acting(box.host("n2"), _act(attack, invented)):
        ran = launches.launch("--check", "none", "--lease", "4", "--", "sleep.py", timeout=30)
    assert "evil" not in launches.read(ran.run, "events.jsonl")
    assert ran.code == 0, ran.said


def test_a_node_cannot_use_up_the_space_for_the_measurements_of_others(tmp_path: Path) -> None:
    """A node that claims any times it likes fills only its own share, and that is counted."""
    log = MeasurementLog(tmp_path / "samples.jsonl", limit=400_000, nodes=2)
    figures = {"children": {"1": {"rss": 10**12, "cpu": 1.0}}}
    for number in range(20_000):
        log.take(NodeMeasurement(node="n2", at=number * 1e9, figures=figures))
    for second in range(100):
        log.take(NodeMeasurement(node="n1", at=float(second), figures=figures))
    log.close()
    assert (tmp_path / "samples.jsonl").stat().st_size < 250_000
    assert log.past_limit["n2"] > 10_000
    assert sum(sample.node == "n1" for sample in read_measurements(tmp_path / "samples.jsonl")) == 100


def test_output_that_is_only_gaps_stays_below_the_limit_of_a_log(tmp_path: Path) -> None:
    """A node that reports lost bytes and never sends one fills no disk with the marks of the gaps."""
    limits = LogLimits(rank=2**20, run=2**21)
    log = LogWriter(tmp_path, ranks=2, limits=limits)
    for second in range(100_000):
        log.take(1, "n2", "stdout", b"", float(second), dropped=1)
    log.close()
    assert _measure_folder(tmp_path) < 2 * limits.rank


def test_a_frame_of_millions_of_values_is_refused() -> None:
    """JSON of a few bytes per value would take twenty times its size in the head's memory."""
    with pytest.raises(frames.FrameError):
        frames.unpack(b'{"a":[' + b"[]," * (frames.LIMIT // 3 - 10) + b"0]}")


SPAM = """
import os
body = b'{"samples":{"wall":1.0}}'
data = (len(body).to_bytes(4, "big") + body) * 2000
while True:
    os.write(1, data)
"""
ECHO = """
import json, os, sys
while size := sys.stdin.buffer.read(4):
    number = json.loads(sys.stdin.buffer.read(int.from_bytes(size, "big")))["id"]
    body = json.dumps({"re": number}).encode()
    os.write(1, len(body).to_bytes(4, "big") + body)
"""


def test_a_node_that_sends_frames_without_end_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node's replies are not late, and the head spends a share of its time on the flood."""
    # A burst is free; with the usual one the test would take longer.
    monkeypatch.setattr("aboard.transport.agent_link.BURST_SECONDS", 0.1)

    async def measure() -> float:
        links = []
        for name, code in (("n2", SPAM), ("n1", ECHO)):
            stream = await start_program([sys.executable, "-c", code], lambda _line: "")
            link = AgentLink(Node(name=name), stream, frames.FrameSplitter(), {}, "")
            link.most_share = MOST_SHARE
            # About what a session does with a frame.
            link.on_frame = lambda message: [json.dumps(message) for _ in range(5)].clear()
            link.begin([])
            links.append(link)
        burst = time.process_time() + 0.5
        await until(lambda: time.process_time() > burst, 30)
        spent, began = time.process_time(), time.monotonic()
        for _ in range(40):
            # Far below the lease, and far above what a busy machine adds.
            with within(5):
                await links[1].ask("beat", 10)
            await asyncio.sleep(0.05)
        share = (time.process_time() - spent) / (time.monotonic() - began)
        for link in links:
            await link.close()
        return share

    assert asyncio.run(measure()) < 2 * MOST_SHARE


@pytest.mark.parametrize(
    "tampered",
    [
        {"keys": [{"path": ".ssh/id_ed25519", "comment": "x'); touch /tmp/owned; case x in ('x"}]},
        {"address": "-oProxyCommand=touch /tmp/owned"},
        {"name": "-oProxyCommand=touch /tmp/owned"},
        {"user": "-oProxyCommand=touch /tmp/owned"},
    ],
    ids=lambda tampered: next(iter(tampered)),
)
def test_a_record_that_a_node_changed_in_a_shared_home_is_refused(tmp_path: Path, tampered: dict[str, Any]) -> None:
    """`aboard trust --undo` refuses a record whose values no `aboard trust` writes."""
    record: dict[str, Any] = {
        "name": "n1",
        "address": None,
        "user": None,
        "port": None,
        "directories": [],
        "keys": [],
        "changes": [],
    }
    (tmp_path / "node-0.json").write_text(json.dumps(record | tampered))
    with pytest.raises(AboardError) as error:
        TrustRecords(tmp_path).nodes()
    assert error.value.code == "trust-record"


def test_a_task_that_claims_another_node_is_refused() -> None:
    """Where two tasks of a step say that they run on one node, neither is served, and the message names both."""
    lines = r"print('1: \x1dNn1\n1: evil\n0: \x1dNn1', flush=True); import sys; sys.stdin.read()"

    async def listen() -> str:
        process = await start_program([sys.executable, "-c", lines], lambda _line: None)
        step = SrunStep(process, ["n1", "n2"], build_bootstrap(10, START_TASK))
        stream = step.streams["n1"]
        while await stream.read(100):
            pass
        ending = stream.ending
        for each in step.streams.values():
            await each.close(hurry=True)
        return SlurmTransport().classify(ending)[1]

    assert asyncio.run(asyncio.wait_for(listen(), 60)) == "tasks 1 and 0 both say that they run on n1"


def test_a_node_that_describes_its_file_wrongly_does_not_stop_trust(tmp_path: Path) -> None:
    """A reply that is almost a dump of a file is refused at once."""

    async def read() -> None:
        shell = await open_local_shell(prelude=f'aboard_look() {{ echo "file 1 2"; echo {"a" * 500}z; }}')
        try:
            await HomeFiles("n1", shell, TrustRecords(tmp_path).head()).read(KNOWN_HOSTS)
        finally:
            await shell.close()

    with within(20), pytest.raises(AboardError) as error:
        asyncio.run(read())
    assert error.value.code == "trust-file"


ENDLESS = """
import json, os, sys
row = %s
while size := sys.stdin.buffer.read(4):
    number = json.loads(sys.stdin.buffer.read(int.from_bytes(size, "big")))["id"]
    body = json.dumps({"re": number, "found": [row], "more": True}).encode()
    os.write(1, len(body).to_bytes(4, "big") + body)
"""


ROWS = {"again": [0, "same", 0o100644, 1, 1], "long": [0, "link", 0o120777, 1, 1, "x" * 100_000]}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_listing_that_repeats_itself_is_refused(row: list[object]) -> None:
    """`aboard sync` asks a node for the rest of its listing only while that names new files of possible lengths."""

    async def list_entries() -> None:
        stream = await start_program([sys.executable, "-c", ENDLESS % row], lambda _line: "")
        link = AgentLink(Node(name="n2"), stream, frames.FrameSplitter(), {}, "")
        link.begin([])
        sender = TreeSender(link)
        try:
            async with asyncio.timeout(10):
                await sender.list_entries("/project", [""], known=lambda _path: True)
        finally:
            await sender.close()

    with pytest.raises(ProtocolError):
        asyncio.run(list_entries())
