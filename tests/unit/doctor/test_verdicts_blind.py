"""Verdicts on what nobody had thought of when the rules were written, each with what it must not be taken for."""

from dataclasses import replace
from typing import Any

from evidence_builders import at_collective, evidence, in_collective, process, stack, stuck_socket

from aboard.core.evidence.node_snapshot import PingResult, RankSnapshot, StoreRequest, TcpConnection
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.rank_phases import Phase
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.judge_evidence import judge_evidence

POOL = stack(("/usr/lib/python3.11/threading.py", 327, "wait"), ("/home/me/train.py", 40, "load"))
RECEIVES = stack(
    ("/x/site-packages/torch/distributed/distributed_c10d.py", 2400, "recv"), ("/home/me/train.py", 50, "step")
)
FABRIC = "10.9.0"


def first(given: Evidence) -> Finding:
    return judge_evidence(given).findings[0]


def eight(**others: RankSnapshot) -> dict[int, RankSnapshot]:
    return {rank: in_collective() for rank in range(8)} | {int(name[1:]): seen for name, seen in others.items()}


def waits(text: Untrusted) -> RankSnapshot:
    return RankSnapshot(process=process(call="futex"), stack=text, groups=(at_collective(19, over=True),))


def test_who_waits_for_a_worker_that_was_killed_for_memory_waits_for_that() -> None:
    """The node's counter has grown since the start; without that it is a lock."""
    ranks = eight(r4=waits(POOL))
    grown: dict[str, Any] = {"n3": {"oom_before": 1, "oom_kills": 2}}
    found = first(evidence(ranks, nodes=grown))
    assert (found.code, found.nodes, found.ranks) == ("run-out-of-memory", ("n3",), (4,))
    assert "a process has been OOM-killed on n3" in found.seen
    same: dict[str, Any] = {"n3": {"oom_before": 1, "oom_kills": 1}}
    assert first(evidence(ranks, nodes=same)).code == "hang-lock"


def test_a_message_that_nobody_sends_is_no_lock() -> None:
    """Its own stack is in torch.distributed, and not in the collective of the others."""
    found = first(evidence(eight(r3=waits(RECEIVES))))
    assert (found.code, found.nodes, found.ranks) == ("hang-mismatch", ("n2",), (3,))
    assert "a different torch.distributed call at train.py:50 in step" in found.seen


def _through(address: str, peer: str) -> TcpConnection:
    return TcpConnection(local=f"{address}:4000", remote=f"{peer}:5000", state="ESTABLISHED")


def test_an_address_that_a_node_has_lost_is_named_by_its_own_connections() -> None:
    """Nobody has it any more, and the plan has names only: the ranks' connections tell whose it was."""
    lost, other = f"{FABRIC}.2", f"{FABRIC}.1"
    cards: dict[str, Any] = {
        f"n{number}": {"addresses": (("eth0", f"10.0.0.{number}"), ("eth1", f"{FABRIC}.{number}"))}
        for number in (1, 3, 4)
    }
    ranks = eight(
        r1=in_collective(sockets=(stuck_socket(f"{other}:5000", f"{lost}:4000"),)),
        r2=in_collective(sockets=(_through(lost, other),)),
    )
    none = PingResult(small=False, large=False, sent=4, lost=4)
    cards["n1"]["echoes"] = {lost: none}
    found = first(evidence(ranks, nodes=cards))
    assert (found.code, found.nodes) == ("hang-link-cut", ("n2",))
    assert f"n2 no longer has the address {lost}" in found.seen


def test_connections_that_a_firewall_forgot() -> None:
    """New packets pass: what was cut a moment ago goes on by itself, and what is silent for long does not."""
    well = PingResult(small=True, large=True, sent=4, lost=0)
    nodes: dict[str, Any] = {"n2": {"echoes": {"10.0.0.1": well, "10.0.0.3": well}}}
    short = stuck_socket("10.0.0.1:3", "10.0.0.3:4")
    assert first(evidence(eight(r1=in_collective(sockets=(short,))), nodes=nodes)).severity is Severity.INFO
    found = first(evidence(eight(r1=in_collective(sockets=(replace(short, silent=25.0),))), nodes=nodes))
    assert (found.code, found.severity) == ("hang-link-cut", Severity.BLOCK)
    assert "new connections work" in found.seen


def test_a_name_that_is_another_machine_on_one_node() -> None:
    """Refused or not, it looks in the wrong place; where all take it for rank 0's node, nothing is wrong with it."""
    joining = StoreRequest(host="gpu1i", port=29500, world=8)
    ranks = {rank: RankSnapshot(process=process(), joining=joining) for rank in range(8)}
    listens = TcpConnection(local="0.0.0.0:29500", remote="0.0.0.0:0", state="LISTEN")
    ranks[0] = RankSnapshot(process=process(), joining=replace(joining, master=True), sockets=(listens,))
    phases = {rank: Phase.STORE for rank in range(8) if rank not in (4, 5)}

    def told(address: str) -> Finding:
        nodes: dict[str, Any] = {f"n{number}": {"names": {"gpu1i": ("10.0.0.1",)}} for number in (1, 2, 4)}
        nodes["n3"] = {"names": {"gpu1i": (address,)}, "dials": {("gpu1i", 29500): "refused"}}
        return first(evidence(ranks, default=Phase.TORCH, phases=phases, nodes=nodes))

    found = told("10.0.0.4")
    assert (found.code, found.nodes, found.ranks) == ("init-elsewhere", ("n3",), (4, 5))
    assert "resolve gpu1i to 10.0.0.4 (n4), but rank 0 on n1 is at 10.0.0.1" in found.seen
    assert "sudo sed -i '1i 10.0.0.1 gpu1i' /etc/hosts    # on n3" in found.fix
    assert told("10.0.0.1").code == "init-store-refused"
