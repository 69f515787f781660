"""What a verdict gives to type: whole commands, each with its node, made of what is known; the bench types them."""

import re
from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import at_collective, ending, evidence, in_collective, process, stack, stuck_socket
from made_events import made_event

from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.evidence.node_snapshot import (
    CollectiveRecord,
    NicTraffic,
    NodeSnapshot,
    PingResult,
    RankSnapshot,
    StoreRequest,
    TcpConnection,
)
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.plan.plan import Plan
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding
from aboard.doctor.judge_evidence import judge_evidence
from aboard.doctor.shared.fix_commands import build_check_command, build_firewall_rules

_COMMANDS = r"(sudo |timeout |echo |getent |grep |aboard |kill |ping |ip |py-spy |fuser |curl |cat |ls |scp |env: )"
JOINING = StoreRequest(host="10.0.0.1", port=29500, world=8)
SYN = TcpConnection(local="10.0.0.3:5", remote="10.0.0.1:29500", state="SYN_SENT", resent=2)
FULL = RankSnapshot(process=process(), joining=JOINING)


def eight(**others: RankSnapshot) -> dict[int, RankSnapshot]:
    """Eight ranks in the 20th collective, but for those that are given as rN."""
    return {rank: in_collective() for rank in range(8)} | {int(name[1:]): seen for name, seen in others.items()}


def behind(**given: Any) -> RankSnapshot:
    """A rank that has done the 19th and is elsewhere."""
    where = stack(("/home/me/train.py", 31, "wait_for_luck"))
    return in_collective(**{"groups": (at_collective(19, over=True),), "stack": where, **given})


def fix(given: Evidence) -> list[str]:
    """The lines of the verdict, of which each must be a command or advice, and name nodes that are nodes."""
    lines = judge_evidence(given).findings[0].fix.splitlines()
    for line in lines:
        command, _, comment = line.partition("    # ")
        assert line.startswith("# ") or re.match(_COMMANDS, command), line
        assert not re.search(r"\b(ADDRESS|PID|IFACE|PATH|NODE|RUN)\b|…", command), line
        if comment.startswith("on "):
            assert set(expand_node_set(comment[3:].partition(";")[0])) <= {"n1", "n2", "n3", "n4"}, line
    return lines


def cut(**nodes: Any) -> Evidence:
    """All that n3 sends to its two neighbours is lost."""
    bad = (stuck_socket("10.0.0.3:1", "10.0.0.1:2"), stuck_socket("10.0.0.3:1", "10.0.0.4:2"))
    return evidence(eight(r4=in_collective(sockets=bad)), nodes=nodes)


def test_a_cut_link_is_opened_both_ways_at_the_node_that_is_cut_off() -> None:
    """By the smallest network that has all its peers, at all ports at which ranks may listen."""
    first, second, last = fix(cut())
    assert first.startswith("sudo iptables -I INPUT -p tcp -s 10.0.0.0/29 --dport 1024:65535 -j ACCEPT    # on n3; ")
    assert second.startswith("sudo iptables -I OUTPUT -p tcp -d 10.0.0.0/29 --dport 1024:65535 -j ACCEPT    # on n3; ")
    assert last.startswith("aboard check -i n3@n1 --only network    # ")


def test_large_packets_are_made_smaller_at_all_ends() -> None:
    """What is sent to the node must fit, too; each by the card that leads there."""
    heard = {"echoes": {"10.0.0.3": PingResult(small=True, large=False, sent=4, lost=3)}}
    other = {**heard, "addresses": (("eth0", "192.168.7.4"), ("ens5", "10.0.0.4"))}
    lines = fix(cut(n1=heard, n2=heard, n4=other))
    assert [line.partition(";")[0] for line in lines[1:]] == [
        "sudo ip link set dev eth0 mtu 1400    # on n[1-3]",
        "sudo ip link set dev ens5 mtu 1400    # on n4",
    ]


def test_a_card_that_is_down_is_named() -> None:
    """To switch it on is what can be typed; the rest is for hands."""
    given = cut(n3={"addresses": (("eth5", "10.0.0.3"),), "links": (NicTraffic(name="eth5", state="down"),)})
    assert fix(given)[0].startswith("sudo ip link set dev eth5 up    # on n3; ")


@pytest.mark.parametrize(
    ("phases", "opened"),
    [
        ({0: Phase.STORE}, ["INPUT -p tcp -s 10.0.0.0/29 --dport 1024:65535 -j ACCEPT    # on n1"]),
        (
            {0: Phase.STORE, 2: Phase.STORE},
            [
                "OUTPUT -p tcp -d 10.0.0.0/29 --dport 1024:65535 -j ACCEPT    # on n3",
                "INPUT -p tcp -s 10.0.0.0/29 --dport 1024:65535 -j ACCEPT    # on n1",
            ],
        ),
    ],
)
def test_a_store_is_opened_where_it_is_closed(phases: dict[int, Phase], opened: list[str]) -> None:
    """At rank 0's node if nobody gets there; if others do, at both ends of the way of those who don't."""
    ranks = dict.fromkeys(range(8), FULL) | {rank: replace(FULL, sockets=(SYN,)) for rank in (4, 5)}
    *lines, last = fix(evidence(ranks, default=Phase.TORCH, phases=phases))
    assert [line.partition(";")[0] for line in lines] == [f"sudo iptables -I {each}" for each in opened]
    assert last.startswith("aboard check -i ")


def test_a_card_that_is_down_is_no_firewall() -> None:
    """Ranks that meet don't know why nobody answers; their node does."""
    ranks = dict.fromkeys(range(8), FULL) | {rank: replace(FULL, sockets=(SYN,)) for rank in (4, 5)}
    dark = {"n3": {"links": (NicTraffic(name="eth0", state="lowerlayerdown"),)}}
    lines = fix(evidence(ranks, default=Phase.TORCH, phases={0: Phase.STORE, 2: Phase.STORE}, nodes=dark))
    assert lines[0].startswith("sudo ip link set dev eth0 up    # on n3; ")
    assert "iptables" not in "".join(lines)


def test_an_address_that_nobody_has_is_no_firewall() -> None:
    """Rank 0 was told of another place: no port is to be opened."""
    astray = replace(
        FULL, joining=replace(JOINING, host="10.0.0.250"), sockets=(replace(SYN, remote="10.0.0.250:29500"),)
    )
    given = evidence(dict.fromkeys(range(8), FULL) | {4: astray}, default=Phase.TORCH)
    assert judge_evidence(given).findings[0].code == "init-elsewhere"
    assert fix(given)[0].startswith("grep ")


def test_rank_0_alone_at_another_place_is_the_one_to_look_at() -> None:
    """Seven that were sent to one place are right, and the one that was sent elsewhere isn't."""
    moved = replace(FULL, joining=replace(JOINING, port=29501))
    nodes = {f"n{at}": {"dials": {("10.0.0.1", 29500): "refused"}} for at in (1, 2, 3, 4)}
    found = judge_evidence(
        evidence(dict.fromkeys(range(8), FULL) | {0: moved}, default=Phase.TORCH, nodes=nodes)
    ).findings[0]
    assert (found.code, found.nodes, found.ranks) == ("init-elsewhere", ("n1",), (0,))


def test_a_name_gets_the_address_at_which_rank_0_is() -> None:
    """A line for /etc/hosts, whole."""
    other = replace(FULL, joining=replace(JOINING, host="n9"))
    unknown = {"n3": {"names": {"n9": "Name or service not known"}}}
    lines = fix(evidence(dict.fromkeys(range(8), FULL) | {4: other}, default=Phase.TORCH, nodes=unknown))
    assert lines[1].startswith("echo '10.0.0.1 n9' | sudo tee -a /etc/hosts    # on n3; ")


def test_a_dead_mount_is_taken_away_and_comes_back() -> None:
    """With its server, where the kernel knows it."""
    hung = behind(process=process(states="DDDDDDDD", wchan="rpc_wait_bit_killable", file="/my data/7", call="read"))
    mounts = {"n2": {"mounts": (("/my data", "nfs4", "server:/data"),)}}
    lines = fix(evidence(eight(r3=hung), nodes=mounts))
    assert lines[1].startswith("sudo umount -f -l '/my data'    # on n2; ")
    assert lines[2].startswith("sudo mount -t nfs4 server:/data '/my data'    # on n2; ")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("/sys/fs/cgroup/job/cpu.max", "echo max | sudo tee /sys/fs/cgroup/job/cpu.max    # on n3; "),
        (
            "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us",
            "echo -1 | sudo tee /sys/fs/cgroup/cpu/x/cpu.cfs_quota_us    # on n3; ",
        ),
        ("", "cat /proc/self/cgroup    # on n3; "),
    ],
)
def test_a_quota_is_raised_where_it_is_set(file: str, line: str) -> None:
    """In the file of either version; where it can't be seen, how to find it."""
    entries = tuple(CollectiveRecord(seq=seq, op="gloo:all_reduce", at=900 + seq, over=True) for seq in range(30))
    late = tuple(replace(entry, at=entry.at + 0.6) for entry in entries)
    walked = [
        in_collective(groups=(replace(at_collective(30), entries=each, enqueued=29),)) for each in (entries, late)
    ]
    ranks = {rank: walked[rank == 5] for rank in range(8)}
    given = evidence(ranks, quiet=0.5, pace=1.0, usual=0.3, nodes={"n3": {"throttled": 0.6, "quota": file}})
    assert fix(given)[0].startswith(line)


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (process(call="flock", file="/data/a lock"), "fuser -v '/data/a lock'    # on n2; "),
        (process(call="futex"), "py-spy dump --pid 4711    # on n2; "),
        (process(states="RRRRRRRR", cpu=1.0), "py-spy dump --pid 4711    # on n2; "),
    ],
)
def test_what_a_rank_waits_for_is_looked_at(seen: Any, line: str) -> None:
    """The file, its holders; the process, its threads."""
    given = evidence(eight(r3=behind(process=seen)), quiet=60.0)
    assert any(each.startswith(line) for each in fix(given))


def test_a_service_is_tried_at_its_own_address() -> None:
    """No word is left for the reader to fill in."""
    outside = TcpConnection(local="10.0.0.2:7", remote="10.9.9.9:8080", state="ESTABLISHED", inode=77)
    seen = behind(process=process(call="recvfrom", file="socket:[77]"), sockets=(outside,))
    assert fix(evidence(eight(r3=seen)))[1].startswith("curl -v --max-time 5 http://10.9.9.9:8080/    # on n2; ")


def test_nodes_are_checked_again_as_the_run_reaches_them() -> None:
    """Names alone would lose what aboard.yaml says of them, as their second network."""
    given = evidence(eight())
    assert build_check_command(given, ["n3", "n1", "n3"], "network") == "aboard check -i n3@n1 --only network"
    assert build_check_command(given, ["n1", "n2", "n3", "n4"], why="all") == "aboard check    # all"
    plain = tuple(replace(part, node=Node(name=part.node.name, slots=2)) for part in given.plan.parts)
    named = replace(given, plan=replace(given.plan, parts=plain))
    assert build_check_command(named, ["n3", "n1"]) == "aboard check n3 n1"
    # What a launch chooses by itself stands in no file.
    chosen = Interpreter(path="/opt/py/bin/python", origin=InterpreterSource.VIRTUAL_ENV)
    plain = tuple(replace(part, node=replace(part.node, interpreter=chosen, workdir="/home/me/run")) for part in plain)
    assert (
        build_check_command(replace(given, plan=replace(given.plan, parts=plain)), ["n3", "n1"]) == "aboard check n3 n1"
    )


def test_peers_far_apart_are_let_in_one_by_one() -> None:
    """A network that has both 10.0.0.1 and 10.200.0.1 is not theirs; IPv6 has a program of its own."""
    far = evidence(eight(), nodes={"n2": {"addresses": (("eth0", "10.200.0.1"),)}})
    assert " -s 10.0.0.1,10.0.0.3,10.200.0.1 " in build_firewall_rules(far, ["n4"], "10.0.0.4", ["in"])
    six = evidence(eight(), nodes={f"n{at}": {"addresses": (("eth0", f"fd00::{at}"),)} for at in (1, 2, 3, 4)})
    assert build_firewall_rules(six, ["n4"], "fd00::4", ["in"]).startswith(
        "sudo ip6tables -I INPUT -p tcp -s fd00::/126 "
    )
    assert build_firewall_rules(replace(far, snapshots={}), ["n4"], "10.0.0.4") == ""


def died(plan: Plan, kind: str, message: str, *ranks: int) -> Finding:
    """The verdict on a run in which these ranks raised the same."""
    where = {start.rank: node for node, start in plan.starts()}
    said = {"type": kind, "message": message, "trace": ""}
    events = [made_event("raised", node=where[rank], seq=1, at=1.0, child=str(rank), **said) for rank in ranks]
    gone = [made_event("exited", node=where[rank], seq=2, at=2.0, child=str(rank), code=1) for rank in ranks]
    return ending(Evidence(plan=plan, run=Run.replay("r", [*events, *gone])))[0]


def test_a_file_that_nodes_lack_is_copied_from_another() -> None:
    """By way of the head, from a node whose ranks did not miss it, to all that did."""
    plan = evidence(eight()).plan
    said = "[Errno 2] No such file or directory: '/data/a b'"
    assert "\nscp -3 n2:'/data/a b' n1:'/data/a b'    # here; " in died(plan, "FileNotFoundError", said, 0).fix
    both = died(plan, "FileNotFoundError", said, 0, 2).fix
    assert "\nfor node in n1 n2; do scp -3 n3:'/data/a b' \"$node\":'/data/a b'; done    # here; " in both


def with_argv(plan: Plan, *first: tuple[str, ...], **node: Any) -> Plan:
    """The plan with these words before the script, one for each node."""
    parts = [
        replace(
            part,
            node=Node(name=part.node.name, **node),
            starts=tuple(replace(start, argv=(*words, "train.py")) for start in part.starts),
        )
        for words, part in zip(first, plan.parts, strict=True)
    ]
    return replace(plan, parts=tuple(parts))


def test_a_missing_module_is_installed_into_the_interpreter_of_the_ranks() -> None:
    """All its nodes in one loop, each interpreter by itself; or another interpreter is chosen."""
    plan = evidence(eight()).plan
    missing = ("ModuleNotFoundError", "No module named 'apex'", *range(8))
    same = died(with_argv(plan, *[("/opt/py/bin/python",)] * 4), *missing)
    assert same.seen == "all 8 ranks on n[1-4] raised ModuleNotFoundError: No module named 'apex'"
    assert same.why.startswith("The ranks' interpreter, /opt/py/bin/python, does not have this module.")
    first, other, _logs = same.fix.splitlines()
    assert first == (
        "for node in n1 n2 n3 n4; do ssh \"$node\" '/opt/py/bin/python -m pip install apex'; done"
        "    # here; or install the package that provides apex"
    )
    assert "--set cluster.python=/path/to/env/bin/python" in other
    two = died(with_argv(plan, *[("/a/python3.11",)] * 3, ("python3",), user="ann", port=22), *missing)
    assert "(/a/python3.11 on n[1-3], python3 on n4)" in two.why
    assert two.fix.startswith("ssh -p 22 ann@n1 '/a/python3.11 -m pip install apex'    # here; ")
    assert "\nssh -p 22 ann@n4 'python3 -m pip install apex'    # here; " in two.fix


def test_a_missing_module_is_installed_by_srun_inside_a_job() -> None:
    """One step for each node, with GPUs as the job has them: Slurm would refuse some steps without."""
    plan = evidence(eight()).plan
    missing = ("ModuleNotFoundError", "No module named 'apex'")
    inside = with_argv(plan, *[("python3",)] * 4, transport=TransportKind.SLURM, step_options=("--gres=gpu:2",))
    assert died(inside, *missing, *range(8)).fix.startswith(
        'for node in n1 n2 n3 n4; do srun --overlap --gpus=2 -N1 -n1 -w "$node" bash -c'
        " 'python3 -m pip install apex'; done    # here; "
    )
    options = ("--het-group=1", "--gres=none")
    without = with_argv(plan, *[("python3",)] * 4, transport=TransportKind.SLURM, step_options=options)
    assert died(without, *missing, 0).fix.startswith(
        "srun --overlap --het-group=1 -N1 -n1 -w n1 bash -c 'python3 -m pip install apex'    # here; "
    )


def test_a_missing_module_names_the_environment_of_the_head_that_nodes_lack() -> None:
    """Which has it, most likely."""
    chosen = Interpreter(path="python3", origin=InterpreterSource.LOGIN_SHELL, lacking="/venv/bin/python")
    plan = with_argv(evidence(eight()).plan, *[("python3",)] * 4, interpreter=chosen)
    found = died(plan, "ModuleNotFoundError", "No module named 'apex'", *range(8))
    assert "; the environment that is active on the head, /venv/bin/python, is not on n[1-4]." in found.why


def test_a_module_is_installed_after_the_setup_lines_of_its_nodes() -> None:
    """Where they are not known, as in a record, no command is given: it would install into another environment."""
    plan = evidence(eight()).plan
    node = Node(name="n", setup=("module load cuda",))
    argv = prepend_setup(node, ("python3",))
    missing = ("ModuleNotFoundError", "No module named 'apex'", 0)
    fix = died(with_argv(plan, *[argv] * 4, setup=node.setup), *missing).fix
    assert fix.startswith("ssh n1 'module load cuda && python3 -m pip install apex'    # here; ")
    assert "pip" not in died(with_argv(plan, *[argv] * 4), *missing).fix
    assert "pip" not in died(with_argv(plan, *[("./run.sh",)] * 4), *missing).fix


@pytest.mark.parametrize("name", ["x; rm -rf ~", "$(id)", "-r", "a b", "\u202ex", "x\ny"])
def test_only_the_name_of_a_module_reaches_a_command(name: str) -> None:
    """Ranks choose what stands in the message: anything else is left out of what is to be typed."""
    finding = died(evidence(eight()).plan, "ModuleNotFoundError", f"No module named '{name}'", 0)
    assert "pip" not in finding.fix
    assert "--set cluster.python=" in finding.fix


def test_a_child_that_the_kernel_killed_is_want_of_memory() -> None:
    """The rank only raises; the kernel's counter tells why its child is gone."""
    said = {"type": "CalledProcessError", "message": "Command 'x' died with <Signals.SIGKILL: 9>.", "trace": ""}
    events = [
        made_event("raised", node="n1", seq=1, at=1.0, child="0", **said),
        made_event("exited", node="n1", seq=2, at=2.0, child="0", code=1),
    ]
    grown = {"n1": NodeSnapshot(at=9.0, oom_before=0, oom_kills=1)}
    given = Evidence(plan=evidence(eight()).plan, run=Run.replay("r", events), snapshots=grown)
    assert ending(given)[0].code == "run-out-of-memory"
    same = replace(given, snapshots={"n1": NodeSnapshot(at=9.0, oom_before=1, oom_kills=1)})
    assert ending(same)[0].code == "run-raised"
