"""`check` against real frames from another process: who is hostile costs the others nothing."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deadlines import slowness, until, wait_until

from aboard.agent import frames, process_tree
from aboard.commands.check.command import check
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Unknown
from aboard.core.probes.probe import CommandOutput, Probe, ProbeAnswer, ProbeCommand
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.doctor.host import subject as host
from aboard.doctor.reach import subject as reach
from aboard.engine.check.check_cluster import CheckReport, check_cluster
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator
from aboard.transport.agent_bootstrap import MARKER
from aboard.transport.local import LocalTransport
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding, Transport

# The others ask for more than a simulated or a lying node knows how to answer.
FIRST = (reach.SUBJECT, host.SUBJECT)


def _cluster(*names: str) -> Cluster:
    return Cluster(nodes=tuple(Node(name=name) for name in names))


def _check(
    cluster: Cluster, transport_for: Callable[[Node], Transport], subjects: tuple[Subject, ...] = FIRST
) -> CheckReport:
    return asyncio.run(check_cluster(cluster, subjects, transport_for=transport_for, dial_seconds=2 * slowness()))


class Liar(LocalTransport):
    """A node that greets well and answers each question with what `lie` returns for it."""

    bootstrap = None

    def __init__(self, lie: Callable[[frames.Message], frames.Message], hello: frames.Message | None = None) -> None:
        self._lie = lie
        self._hello = {"hello": frames.VERSION, **(hello or {})}
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self._splitter: frames.FrameSplitter | None = None
        self.ending = StreamEnding(exit_code=None)

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        return self

    async def read(self, size: int) -> bytes:
        return await self._out.get()

    def write(self, data: bytes | memoryview) -> None:
        if self._splitter is None:
            self._splitter = frames.FrameSplitter()
            marker = MARKER % bytes(data).rpartition(b"<aboard ")[2].partition(b">")[0]
            self._out.put_nowait(marker + frames.pack(self._hello))
            return
        for body in self._splitter.feed(bytes(data)):
            message = frames.unpack(body)
            self._out.put_nowait(frames.pack({"re": message["id"], **self._lie(message)}))

    async def drain(self) -> None:
        return

    async def close(self, *, hurry: bool = False) -> StreamEnding:
        return self.ending


def _honest(message: frames.Message) -> frames.Message:
    return {"wall": time.time()} if message["op"] == "ping" else {"files": {}, "code": 0, "stdout": "", "stderr": ""}


@pytest.mark.ci
def test_hostile_nodes_become_findings_and_the_others_are_served() -> None:
    """Silent, garbage, a line without an end, another version: each named, and sixty nodes beside them answer."""
    behaviours = {"h1": "silent", "h2": "garbage", "h3": "flood", "h4": "other-version"}
    cluster = _cluster(*(f"n{number}" for number in range(60)), *behaviours)

    async def story() -> CheckReport:
        async with run_simulator() as path:
            return await check_cluster(
                cluster,
                FIRST,
                transport_for=lambda node: SimulatedTransport(path, behaviours.get(node.name, "answer")),
                dial_seconds=slowness(),
            )

    report = asyncio.run(story())
    met = [name for name, contact in report.facts.contacts.items() if isinstance(contact, ReachedNode)]
    assert met == [f"n{number}" for number in range(60)]
    assert report.facts.of(host.CORES) == dict.fromkeys(met, 64)
    assert {finding.nodes[0]: finding.code for finding in report.findings} == {
        "h1": "reach-timeout",
        "h2": "reach-garbage",
        "h3": "reach-shell-noise",
        "h4": "reach-wrong-version",
    }


def test_no_simulator_is_a_refused_connection() -> None:
    """A wire that can't even be dialled is a contact like any other."""
    report = _check(_cluster("n1"), lambda _node: SimulatedTransport("/nowhere/agents.sock"))  # type: ignore[arg-type]
    contact = report.facts.contacts["n1"]
    assert isinstance(contact, UnreachedNode)
    assert contact.reason is UnreachableReason.REFUSED


def test_the_simulator_ends_with_its_user() -> None:
    """Also when connections are still open to it."""

    async def story() -> set[int]:
        before = process_tree.list_descendants(os.getpid())
        async with run_simulator() as path:
            streams = [
                await SimulatedTransport(path, "silent").open(Node(name="n1"), lambda _phase: None) for _ in range(3)
            ]
            during = process_tree.list_descendants(os.getpid()) - before
        for stream in streams:
            await stream.close()
        return during

    assert asyncio.run(story())
    assert not [pid for pid in process_tree.list_descendants(os.getpid()) if "simulator" in _command(pid)]


def test_this_machine_is_met_for_real() -> None:
    """The local agent answers with what this machine is, and nothing is found wrong with it."""
    report = asyncio.run(check_cluster(Cluster(nodes=(Node(name="me", transport=TransportKind.LOCAL),)), FIRST))
    contact = report.facts.contacts["me"]
    assert isinstance(contact, ReachedNode)
    assert contact.hostname == os.uname().nodename
    assert abs(contact.clock_offset) < 1
    assert report.facts.of(host.KERNEL) == {"me": os.uname().release}
    assert report.facts.of(host.CORES)["me"] == len(os.sched_getaffinity(0))
    # Of other runs on this very machine, and of what they left, it may well tell.
    others = {"host-leftovers", "host-leftover-files", "host-active-run", "host-other-ranks"}
    assert {finding.code for finding in report.findings} <= others


@pytest.mark.parametrize(
    "wall",
    [None, "noon", [], float("nan"), float("inf"), 10**400, -(10**400)],
    ids=["none", "text", "list", "nan", "inf", "huge", "huge below zero"],
)
def test_a_clock_that_shows_nonsense_is_garbage(wall: object) -> None:
    """No number is made of it, and no other node's check ends by it."""
    wires = {"n1": Liar(lambda _message: {"wall": wall}), "n2": Liar(_honest)}
    report = _check(_cluster("n1", "n2"), lambda node: wires[node.name])
    bad, good = report.facts.contacts["n1"], report.facts.contacts["n2"]
    assert isinstance(bad, UnreachedNode)
    assert bad.reason is UnreachableReason.GARBAGE
    assert isinstance(good, ReachedNode)


@pytest.mark.parametrize("given", [None, 7, [], {}, "\ud800\x1b[31m", "x" * 500, {"a": {"b": []}}])
def test_whatever_a_hello_holds_is_fit_for_a_screen(given: Any) -> None:
    """Words are short and printable, and JSON can be written of them; what is no word is empty."""
    liar = Liar(_honest, dict.fromkeys(("hostname", "user", "address", "python"), given))
    contact = _check(_cluster("n1"), lambda _node: liar).facts.contacts["n1"]
    assert isinstance(contact, ReachedNode)
    for word in (contact.hostname, contact.user, contact.address, contact.python):
        assert word.isprintable()
        assert len(word) <= 80
        json.dumps(word, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "files",
    [
        None,
        [],
        {"/proc/meminfo": 7},
        {"/proc/meminfo": "MemTotal: \u0663 kB"},
        {"/proc/self/status": "Cpus_allowed_list:\t\u00b2"},
        {"/proc/self/status": "Cpus_allowed_list:\t" + "9" * 5000},
        {"/proc/self/status": "Cpus_allowed_list:\t5-3"},
        {"/proc/meminfo": "MemTotal: " + "9" * 5000 + " kB"},
        {"/proc/sys/kernel/osrelease": "\ud800"},
        {"\ud800": "\ud800"},
    ],
)
def test_files_that_hold_nonsense_stay_unknown(files: Any) -> None:
    """Each probe's answer is a value or an unknown with its reason; the node is still met."""
    liar = Liar(lambda message: {"files": files} if message["op"] == "read" else _honest(message))
    report = _check(_cluster("n1"), lambda _node: liar)
    assert isinstance(report.facts.contacts["n1"], ReachedNode)
    assert report.facts.of(host.CORES) == {}
    assert report.facts.of(host.MEMORY) == {}
    assert {"unknown-cores", "unknown-memory"} <= {finding.code for finding in report.findings}


def test_an_agent_that_can_not_do_it_is_met_and_says_why() -> None:
    """A node without free processes can't be asked; that is what is unknown, not whether it is there."""
    error = {"error": "BlockingIOError: [Errno 11] Resource temporarily unavailable \ud800\x1b[2J"}
    liar = Liar(lambda message: _honest(message) if message["op"] == "ping" else error)
    probe = Probe(name="load", question=ProbeCommand(argv=("uptime",)), parse=lambda _answer: 1)
    report = _check(
        _cluster("n1"), lambda _node: liar, (*FIRST, Subject(name="x", title="", probes=(probe,), rules=()))
    )
    assert isinstance(report.facts.contacts["n1"], ReachedNode)
    fact = report.facts.answers["load"]["n1"]
    assert isinstance(fact, Unknown)
    assert "Resource temporarily unavailable" in fact.why
    assert fact.why.isprintable()


def test_commands_run_beside_each_other_and_answer(tmp_path: Path) -> None:
    """Each waits until all have begun, and each probe gets its own command's outcome, from the real agent."""

    def stdout(answer: ProbeAnswer) -> str:
        assert isinstance(answer, CommandOutput)
        return answer.stdout

    script = 'cd "$0"; touch $1; until [ -e one ] && [ -e two ] && [ -e three ]; do sleep 0.01; done; echo $1'
    probes = tuple(
        Probe(name=word, question=ProbeCommand(argv=("sh", "-c", script, str(tmp_path), word)), parse=stdout)
        for word in ("one", "two", "three")
    )
    subject = Subject(name="x", title="", probes=probes, rules=())
    report = asyncio.run(check_cluster(Cluster(nodes=(Node(name="me", transport=TransportKind.LOCAL),)), (subject,)))
    assert {probe.name: report.facts.of(probe)["me"] for probe in probes} == {
        "one": "one\n",
        "two": "two\n",
        "three": "three\n",
    }


def test_a_parser_that_stumbles_is_an_unknown() -> None:
    """A contributor's parser meets an answer that it never saw: one fact is unknown, the check goes on."""

    def parse(answer: ProbeAnswer) -> str:
        assert isinstance(answer, CommandOutput)
        return answer.stdout.split()[9]

    probe = Probe(name="word", question=ProbeCommand(argv=("echo",)), parse=parse)
    subject = Subject(name="x", title="", probes=(probe,), rules=())
    report = _check(_cluster("n1"), lambda _node: Liar(_honest), (subject,))
    assert "IndexError" in report.facts.unknown(probe)["n1"].why


@pytest.fixture
def sleepers() -> Iterator[str]:
    """A number that only this test's processes have on their command line; none may be left."""
    mark = f"34{os.getpid()}"
    yield mark
    wait_until(lambda: not any(mark in _command(pid) for pid in process_tree.read_parents() if pid != os.getpid()), 3)


def test_a_cancelled_check_leaves_no_process(sleepers: str) -> None:
    """Ctrl-C while nodes are being asked: agents, and what they run, are gone when the command is."""
    probe = Probe(name="slow", question=ProbeCommand(argv=("sleep", sleepers)), parse=lambda _answer: 1)
    subject = Subject(name="x", title="", probes=(probe,), rules=())
    nodes = tuple(Node(name=f"n{number}", transport=TransportKind.LOCAL) for number in range(4))
    agents: set[int] = set()

    async def story() -> None:
        before = process_tree.list_descendants(os.getpid())
        running = asyncio.create_task(check_cluster(Cluster(nodes=nodes), (subject,)))
        await until(lambda: sum(sleepers in _command(pid) for pid in process_tree.read_parents()) >= 4)
        agents.update(process_tree.list_descendants(os.getpid()) - before)
        os.kill(os.getpid(), signal.SIGINT)
        await running

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(story())
    assert len(agents) >= 8
    assert not agents & set(process_tree.read_parents())


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as line:  # noqa: PTH123 - one line, read at once
        return line.read()
    return ""


@pytest.mark.parametrize("only", ["network", "storage", "collective"])
def test_a_node_that_was_not_reached_is_a_finding_whatever_the_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    """Nothing was checked on it: `no problems found` and exit code 0 would say that the subject is fine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no ssh
    done = CliRunner().invoke(check, ["n1", "n2", "--only", only])
    assert done.exit_code == 2
    assert "block reach-no-ssh n1,n2 seen: " in done.output
    assert "no problems found" not in done.output
