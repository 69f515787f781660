"""What NCCL's RAS says: read from its own words, asked over the loopback, and judged where nothing surer is known."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deadlines import within
from evidence_builders import at_collective, evidence, in_collective, process

from aboard.agent.inspect import nccl_ras
from aboard.agent.inspect.snapshot_collector import collect_snapshot
from aboard.commands.why.diagnosis_view import ALL_SUBJECTS
from aboard.commands.why.external_jobs import diagnose_external_job
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.evidence.nccl_ras import RasProcess, RasRank, RasStatus, parse_ras_status
from aboard.core.evidence.node_snapshot import RankSnapshot, decode_node_snapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.diagnoses import Severity
from aboard.doctor.judge_evidence import judge_evidence

ANSWERS = Path(__file__).parents[2] / "ras"
GREETING = b"SERVER PROTOCOL 2\n"
Talk = Callable[[socket.socket], None]


def answer(name: str) -> str:
    return (ANSWERS / f"{name}.txt").read_text("utf-8")


def status(name: str) -> RasStatus:
    found = parse_ras_status(answer(name))
    assert found is not None
    return found


def test_a_healthy_job_has_nothing_odd() -> None:
    """Its version, its processes and its communicators are told."""
    assert status("healthy") == RasStatus(version="2.27.5", processes=8, comms=5)
    assert status("uneven") == RasStatus(version="2.29.2", processes=7, comms=1)


def test_who_has_launched_less_than_the_others() -> None:
    """For each kind of collective, with the process of each that is named; 2.24 has one count for all kinds."""
    (comm,) = status("behind").odd
    (gather, (most, one)), (reduce, (_most, two)) = comm.launched
    assert (comm.name, comm.size, gather, reduce) == ("#0-0", 8, "AllGather", "AllReduce")
    assert (most.count, most.reached, most.ranks) == (7, 6650, ())
    fifth = RasRank(number=5, process=RasProcess(pid=4905, address="10.0.0.3"))
    assert (one.count, one.reached, one.ranks) == (1, 6649, (fifth,))
    assert (two.count, [rank.number for rank in two.ranks]) == (2, [4, 5])
    ((what, parts),) = status("behind-2.24").odd[0].launched
    assert (what, [rank.number for rank in parts[1].ranks]) == ("collective", [6, 7])


def test_who_can_not_be_reached() -> None:
    """For the moment or for good; 2.24 tells the numbers of missing ranks without their processes."""
    found = status("missing")
    assert (found.silent_count, found.silent) == (1, (RasProcess(pid=4905, address="10.0.0.3"),))
    assert (found.dead_count, found.odd[0].missing, found.odd[0].missing_ranks[0].number) == (0, 1, 5)
    dead = status("dead-2.24")
    assert (dead.silent_count, dead.dead_count, [each.pid for each in dead.dead]) == (0, 2, [4906, 4907])
    assert dead.odd[0].missing_ranks == (RasRank(number=6), RasRank(number=7))


def test_errors_and_states_of_ranks() -> None:
    """What each reported, and who is in another state than most; halves that differ have no names."""
    remote, own = status("error").odd[0].failed
    assert (remote.count, len(remote.ranks), remote.what) == (7, 7, "Remote process error")
    assert (own.count, own.ranks[0].number, own.what) == (1, 3, "Unhandled CUDA error")
    (comm,) = status("status").odd
    assert [(part.count, part.what) for part in comm.states] == [(6, "RUNNING"), (1, "NOCOMM"), (1, "ABORT")]
    assert [(part.reached, part.ranks) for part in comm.launched[0][1]] == [(7, ()), (0, ())]


@pytest.mark.parametrize("text", ["", "HTTP/1.1 400 Bad Request\r\n", "ERROR: Unknown command\n", "Warnings\n"])
def test_what_is_no_answer(text: str) -> None:
    """Another service, or one that was cut at any place, tells nothing."""
    assert parse_ras_status(text) is None
    whole = answer("missing")
    assert parse_ras_status(text + whole) is None or not text
    assert all(parse_ras_status(whole[:at]) is None for at in range(0, whole.index("Warnings"), 40))


def test_an_answer_of_a_million_lines_is_read_in_bounds() -> None:
    """What is repeated without an end is cut, and is not read over and over."""
    whole = answer("behind")
    line = "  Rank 5 -- GPU 1 managed by process 4905 on node 10.0.0.3\n"
    with within(5):
        found = parse_ras_status(
            (whole + line * 4000 + "#0-1 (00) MISMATCH\n" * 4000 + "Job summary\n" * 4000)[: 256 * 1024]
        )
    assert found is not None
    assert len(found.odd[0].launched[1][1][1].ranks) == 2


# -- asking -----------------------------------------------------------------------------------------------


@contextmanager
def service(talk: Talk) -> Iterator[tuple[int, list[bytes]]]:
    """A server on the loopback, and what it was told; each connection is given to `talk`."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.settimeout(5)
                    heard.append(client.recv(100))
                    try:
                        talk(client)
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def asked(port: int, host: str = "127.0.0.1") -> dict[str, str]:
    return nccl_ras.RasQuery(host, port).answer(1.0)


def says(text: str) -> Talk:
    def talk(client: socket.socket) -> None:
        client.sendall(GREETING)
        while not client.recv(1000).endswith(b"STATUS\n"):
            pass
        # In pieces, as the real one sends it.
        client.sendall(b"OK\n" + text[:100].encode())
        client.sendall(text[100:].encode())

    return talk


def test_the_answer_comes_as_it_was_sent() -> None:
    """After a greeting, with a limit on how long the others are waited for."""
    with service(says(answer("missing"))) as (port, heard):
        assert asked(port) == {"text": answer("missing")}
        assert heard == [b"CLIENT PROTOCOL 2\n"]


def test_nobody_there_is_nothing_to_say() -> None:
    """A port that refuses has no NCCL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert asked(port) == {}


def test_only_the_loopback_is_asked() -> None:
    """Whatever a rank was told to listen on."""
    assert "not a loopback address" in asked(28028, "10.0.0.1")["why"]
    with service(says(answer("healthy"))) as (port, _heard):
        assert "text" in asked(port, "0.0.0.0")  # noqa: S104 - nothing is bound


def test_a_foreign_service_is_told_nothing_more() -> None:
    """Whoever greets otherwise hears our greeting, once, and no question."""
    more: list[bytes] = []

    def talk(client: socket.socket) -> None:
        client.sendall(b"220 mail.example ESMTP\r\n")
        more.append(client.recv(100))

    with service(talk) as (port, heard):
        assert "does not respond" in asked(port)["why"]
    assert (len(heard), more) == (1, [b""])


def test_a_service_that_answers_otherwise() -> None:
    """It greets, and then refuses to be given a limit."""

    def talk(client: socket.socket) -> None:
        client.sendall(GREETING)
        client.recv(100)
        client.sendall(b"ERROR: Invalid timeout value 1\n")

    with service(talk) as (port, _heard):
        assert "does not respond like RAS" in asked(port)["why"]


@pytest.mark.ci
@pytest.mark.parametrize("greets", [False, True])
def test_a_silent_one_does_not_hold_us(greets: bool) -> None:  # noqa: FBT001 - the two ways to be silent
    """It accepts and says nothing: a stopped rank greets nobody, so that another one is tried for; both are bounded."""

    def talk(client: socket.socket) -> None:
        if greets:
            client.sendall(GREETING)
        while client.recv(100):
            pass

    with service(talk) as (port, heard), within(2.5):
        why = asked(port)["why"]
    assert ("had not collected" if greets else "nothing responds") in why
    assert len(heard) == (1 if greets else 3)


@pytest.mark.ci
@pytest.mark.parametrize(("piece", "why"), [(b"x" * 65536, "longer than 256 KiB"), (b"x", "had not collected")])
def test_an_endless_one_is_cut(piece: bytes, why: str) -> None:
    """By its bytes, or by the time that it takes to drip."""
    over = threading.Event()
    sent = []

    def talk(client: socket.socket) -> None:
        client.sendall(GREETING)
        while not over.is_set():
            client.sendall(piece)
            sent.append(len(piece))
            over.wait(0.01 if len(piece) == 1 else 0)

    with within(2.5), service(talk) as (port, _heard):
        assert why in asked(port)["why"]
        over.set()
    # What was on the way lies in the kernel's buffers.
    assert sum(sent) < 32 * nccl_ras.MOST_BYTES


RANK = """import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
while True:
    client, _ = server.accept()
    print(client.recv(100), flush=True)
    client.sendall(b"SERVER PROTOCOL 2\\n")
    client.recv(100)
    client.sendall(b"OK\\n" + open(sys.argv[2], "rb").read())
    client.close()
"""


@contextmanager
def rank(port: int, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process that speaks as RAS on a port; `env` is what it was told to do."""
    argv = [sys.executable, "-ISc", RANK, str(port), str(ANSWERS / "healthy.txt")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            yield child
        finally:
            child.kill()


def looked(pid: int, **message: Any) -> RasStatus | str | None:
    pieces: list[dict[str, Any]] = []
    collect_snapshot(message, {"0": pid}, {"0": pid}, 1.8, pieces.append)
    node = {key: value for piece in pieces for key, value in piece.items()}
    return decode_node_snapshot({"node": node}, {"0": 0}, 0.0).ras


@pytest.mark.ci
def test_a_whole_look_asks_where_a_rank_itself_listens() -> None:
    """On the port that its environment tells, if it is asked to; who listens elsewhere, or turned it off, is let be."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {"NCCL_RAS_ADDR": f"localhost:{port}"}
    with rank(port, **here) as child:
        assert looked(child.pid) is None
        assert looked(child.pid, ras=True) == status("healthy")
        assert looked(os.getpid(), ras=True) is None
    with rank(port, NCCL_RAS_ENABLE="0", **here) as child:
        assert looked(child.pid, ras=True) is None
    with rank(port) as child:
        assert looked(child.pid, ras=True) is None


@pytest.mark.ci
def test_the_whole_way_by_the_real_agent() -> None:
    """From `aboard why --pid` to the process and back: what RAS told is among what was ruled out."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = Cluster(nodes=(Node(name="here", transport=TransportKind.LOCAL),))
    with rank(port, NCCL_RAS_ADDR=f"localhost:{port}") as child:
        told = asyncio.run(diagnose_external_job(here, [child.pid]))
    assert "(2.27.5, queried on here) reached all 8 processes" in str(told.why.ruled_out)


# -- judging ----------------------------------------------------------------------------------------------


def blind(name: str, **given: Any) -> Evidence:
    """Eight ranks on four nodes that gave no flight record and no stack, one of which asked RAS."""
    ranks = {at: RankSnapshot(process=process(pid=4900 + at)) for at in range(8)}
    told = parse_ras_status(answer(name)) or "it had not collected everything within 1.4 s"
    return evidence(ranks, nodes={"n4": {"ras": told}}, **{"quiet": 20.0, **given})


@pytest.mark.parametrize(
    ("name", "code", "ranks", "nodes", "words"),
    [
        ("behind", "hang-nccl-apart", (5,), ("n3",), "launched AllGather up to operation 6649; the others up to"),
        ("behind-2.24", "hang-nccl-apart", (6, 7), ("n4",), "ranks 6-7 on n4 have launched collective up to"),
        ("missing", "hang-nccl-missing", (5,), ("n3",), "NCCL's RAS can't reach rank 5 on n3"),
        ("dead-2.24", "hang-nccl-missing", (6, 7), ("n4",), "considers them dead"),
        ("error", "hang-nccl-error", (3,), ("n2",), "rank 3 on n2 reported: Unhandled CUDA error"),
        ("status", "hang-nccl-apart", (2, 3), ("n2",), "are in state NOCOMM; the others are in RUNNING"),
    ],
)
def test_whom_ras_names_is_the_likeliest_cause(
    name: str, code: str, ranks: tuple[int, ...], nodes: tuple[str, ...], words: str
) -> None:
    """A warning, in a run that stands still, where its ranks show nothing by themselves; its code has a story."""
    found = judge_evidence(blind(name)).findings[0]
    assert (found.code, found.severity, found.ranks, found.nodes) == (code, Severity.WARN, ranks, nodes)
    assert words in found.seen
    assert code in {story.code for subject in ALL_SUBJECTS for story in subject.diagnoses}


def said(given: Evidence) -> str:
    return "\n".join(f"{each.what}: {each.why}" for each in judge_evidence(given).ruled_out)


def test_what_ras_says_of_a_run_that_moves_is_no_cause() -> None:
    """Counts differ for moments all the time; it is told to those who ask for all that was seen."""
    for given in (blind("behind", quiet=1.0), blind("behind", quiet=20.0, pace=10.0)):
        assert judge_evidence(given).findings == ()
        assert "rank 5 on n3 has launched AllGather up to operation 6649" in said(given)


def test_a_rank_that_works_is_given_its_time() -> None:
    """It may evaluate while the others wait: that is worth a line, and becomes a warning when it lasts."""
    for quiet, severity in ((20.0, Severity.INFO), (60.0, Severity.WARN)):
        ranks = {at: RankSnapshot(process=process(pid=4900 + at, cpu=1.0, states="RRRRRRRR")) for at in range(8)}
        given = evidence(ranks, nodes={"n4": {"ras": status("behind")}}, quiet=quiet, usual=None)
        assert [(each.code, each.severity) for each in judge_evidence(given).findings] == [
            ("hang-nccl-apart", severity)
        ]


def test_a_healthy_answer_and_none_at_all_are_told() -> None:
    """Whom it heard, or why it could not be had; and not a word where there is no NCCL."""
    assert "(2.27.5, queried on n4) reached all 8 processes; its 5 communicators are in sync" in said(blind("healthy"))
    assert "NCCL's RAS report: on n4, it had not collected everything" in said(blind("cut"))
    assert "RAS" not in said(evidence({at: RankSnapshot() for at in range(8)}))


def test_what_ranks_show_themselves_is_surer() -> None:
    """With flight records the rank is named by those, also while it is given its time; RAS is only said to agree."""
    for call, severity in (("futex", Severity.BLOCK), ("", Severity.INFO)):
        doing = process(call=call) if call else process(cpu=1.0)
        late = in_collective(process=doing, groups=(at_collective(19, over=True),), stack="")
        ranks = {at: in_collective(20) for at in range(8)} | {6: late}
        found = judge_evidence(given := evidence(ranks, nodes={"n4": {"ras": status("behind")}}, quiet=10.0))
        assert (found.findings[0].ranks, found.findings[0].severity) == ((6,), severity)
        assert "hang-nccl" not in str(found.findings)
        assert "another cause from NCCL's RAS: it reports" in said(given)


def test_a_rank_whose_process_has_another_number_in_its_container() -> None:
    """In a communicator of all ranks its number tells; in another one, process and address do."""
    given = blind("behind")
    ranks = {at: RankSnapshot(process=process(pid=77)) for at in range(8)}
    foreign = evidence(ranks, nodes={"n4": {"ras": status("behind")}}, quiet=20.0)
    assert judge_evidence(foreign).findings[0].ranks == judge_evidence(given).findings[0].ranks == (5,)
    (comm,) = status("behind").odd
    part = replace(status("behind"), odd=(replace(comm, size=4),))
    known = {at: RankSnapshot(process=process(pid=4905 if at == 4 else 77)) for at in range(8)}
    assert judge_evidence(evidence(known, nodes={"n4": {"ras": part}}, quiet=20.0)).findings[0].ranks == (4,)
    (found,) = judge_evidence(evidence(ranks, nodes={"n4": {"ras": part}}, quiet=20.0)).findings
    assert (found.ranks, found.nodes) == ((), ("n3",))
    assert "process 4905 at 10.0.0.3" in found.seen
