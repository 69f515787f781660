"""Why a run ended: the earliest cause, and what only followed from it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import ending
from made_events import made_event
from made_findings import made_finding

from aboard.commands.why.diagnosis_view import ALL_SUBJECTS
from aboard.core.cluster.node import Node
from aboard.core.evidence.node_snapshot import DiskUsage, NodeSnapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuleResult
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.fixes import Fix
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.apply_rules import judge_by_rules
from aboard.doctor.death.rules import DEATH_RULES, conclude_run, report_floods
from aboard.doctor.shared.fix_commands import omit_relaunch

PLAN = Plan(
    run="r",
    program=Program(kind=ProgramKind.SCRIPT, target="train.py"),
    master=MasterAddress(node="n1", address="10.0.0.1", port=29500),
    parts=tuple(
        NodePlan(
            node=Node(name=f"n{at}"), starts=(Start(child=str(at - 1), argv=("python3", "train.py"), rank=at - 1),)
        )
        for at in (1, 2, 3)
    ),
)


def _event(kind: str, rank: int, at: float = 1.0, **data: Any) -> Event:
    return made_event(kind, node=f"n{rank + 1}", seq=1, at=at, child=str(rank), **data)


def _ending(*events: Event, tails: Mapping[int, tuple[str, ...]] | None = None) -> tuple[Finding, ...]:
    said = {rank: tuple(map(Untrusted, lines)) for rank, lines in (tails or {}).items()}
    found = ending(Evidence(plan=PLAN, run=Run.replay("r", events), tails=said))
    known = {story.code for subject in ALL_SUBJECTS for story in subject.diagnoses}
    for finding in found:
        assert {finding.code, *(each.code for each in finding.consequences)} <= known
    return found


def test_a_good_end_has_no_finding() -> None:
    """Nothing is said where nothing is wrong."""
    events = [_event("exited", rank, code=0) for rank in range(3)]
    assert _ending(*events) == ()
    assert ending(Evidence(plan=PLAN, run=Run.replay("r", events), quiet=600.0)) == ()


def test_a_rule_that_fails_is_reported_and_the_others_are_heard() -> None:
    """A mistake in one rule costs what it knows, and not the verdict."""

    def broken(_given: Evidence) -> Iterator[RuleResult]:
        raise KeyError("n9")

    given = Evidence(plan=PLAN, run=Run.replay("r", [_event("exited", 1, code=-9)]))
    why = judge_by_rules(given, (broken, *DEATH_RULES))
    assert [each.code for each in why.findings] == ["run-killed"]
    (passed_over,) = why.ruled_out
    assert (passed_over.what, "KeyError: 'n9'" in passed_over.why) == ("a cause that the rule 'broken' finds", True)


def test_an_exception_is_the_verdict_and_the_others_are_folded() -> None:
    """Who, where, in which phase, what it said; ranks that died of it or were ended are one line below."""
    (finding,) = _ending(
        _event("phase", 1, phase="group"),
        _event("raised", 1, 5.0, type="ValueError", message="no such column: text\nsecond line"),
        _event("exited", 0, 5.1, code=1),
        _event("exited", 1, 5.4, code=1),
        _event("exited", 2, 6.0, code=-15),
        tails={0: ("RuntimeError: Connection closed by peer [10.0.0.2]:4711",)},
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("run-raised", ("n2",), (1,))
    assert finding.seen == "rank 1 on n2, process group ready, raised ValueError: no such column: text second line"
    assert "aboard logs r --rank 1" in finding.fix
    (after,) = finding.consequences
    assert (after.code, after.ranks) == ("run-followed", (0, 2))
    assert after.seen == "of the other ranks, 1 died on its own (rank 0 first), 1 was terminated"


def _raised(kind: str, messages: dict[int, str]) -> list[Event]:
    """Each of these ranks raises, and exits with code 1."""
    raised = [_event("raised", rank, 5.0 + rank, type=kind, message=text) for rank, text in messages.items()]
    return [*raised, *(_event("exited", rank, 9.0, code=1) for rank in messages)]


def test_an_exception_that_every_rank_raises_blames_no_node() -> None:
    """All ranks, all their nodes and the common cause are named, in the verdict and in the fix."""
    said = "[Errno 2] No such file or directory: '/data/train.bin'"
    (finding,) = _ending(*_raised("FileNotFoundError", dict.fromkeys((1, 0, 2), said)))
    assert (finding.code, finding.nodes, finding.ranks) == ("run-raised", ("n1", "n2", "n3"), (0, 1, 2))
    assert finding.seen == f"all 3 ranks on n[1-3] raised FileNotFoundError: {said}"
    assert finding.fix.startswith("ls -l /data/train.bin    # on n[1-3]; ")
    assert finding.consequences == ()


def test_ranks_that_raise_the_same_exception_are_counted() -> None:
    """The verdict says how many of all ranks raised it; a rank that was terminated follows from it."""
    events = [*_raised("ValueError", {0: "bad batch", 2: "bad batch"}), _event("exited", 1, 9.5, code=-15)]
    (finding,) = _ending(*events)
    assert (finding.nodes, finding.ranks) == (("n1", "n3"), (0, 2))
    assert finding.seen == "2 of 3 ranks on n[1,3] raised ValueError: bad batch"
    assert "not in one node" in finding.why
    assert [each.ranks for each in finding.consequences] == [(1,)]


@pytest.mark.parametrize(
    ("messages", "ranks"),
    [
        ({0: "shard 0 of 3: '/data/part-00000.bin'", 2: "shard 2 of 3: '/data/part-00002.bin'"}, (0, 2)),
        ({0: "[Errno 2] no '/a/0'", 2: "[Errno 2] no '/a/2'"}, (0, 2)),
        ({0: "n1 can't write /tmp/tmpab12cd34/x", 1: "n2 can't write /tmp/tmpzz_98765/x"}, (0, 1)),
        ({0: "CUDA out of memory. GPU 0 has 7.1 MiB free", 1: "CUDA out of memory. GPU 1 has 9.9 MiB free"}, (0, 1)),
        ({0: "expected 512 tokens, got 17", 1: "expected 512 tokens, got 23"}, (0,)),
        ({0: "column text is missing", 1: "column label is missing"}, (0,)),
    ],
)
def test_only_what_is_a_ranks_own_may_differ_in_the_same_exception(
    messages: dict[int, str], ranks: tuple[int, ...]
) -> None:
    """Its number, its node and its temporary directory; any other number or word makes it another exception."""
    assert _ending(*_raised("RuntimeError", messages))[0].ranks == ranks


def test_a_cry_about_a_closed_connection_is_no_cause() -> None:
    """A peer that cries before the death of the one it cries about is heard: that other one is named."""
    (finding,) = _ending(
        _event("raised", 0, 5.0, type="RuntimeError", message="Connection closed by peer"),
        _event("exited", 0, 5.2, code=1),
        _event("exited", 2, 5.1, code=-9),
    )
    assert (finding.code, finding.ranks) == ("run-killed", (2,))
    assert "SIGKILL" in finding.seen
    assert "# on n3" in finding.fix


def test_a_cry_alone_is_the_best_that_is_known() -> None:
    """With no other death it is the verdict itself."""
    (finding,) = _ending(_event("exited", 0, code=1), tails={0: ("Connection reset by peer",)})
    assert finding.ranks == (0,)


def test_a_node_that_is_gone_comes_before_cries_about_it() -> None:
    """Peers may cry sooner than we know that it is gone."""
    (finding,) = _ending(
        _event("raised", 0, 5.0, type="RuntimeError", message="Connection reset by peer"),
        _event("exited", 0, 5.2, code=1),
        made_event("cut", node="n2", at=6.0, why="it did not answer"),
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("run-node-gone", ("n2",), (1,))


@pytest.mark.parametrize(
    ("event", "tail", "code", "said", "fix"),
    [
        (
            _event("failed", 1, why="can't enter /job: No such file or directory"),
            (),
            "run-not-started",
            "/job",
            "mkdir",
        ),
        (_event("failed", 1, why="can't start nope: not there"), (), "run-not-started", "nope", "command -v nope"),
        (
            _event("failed", 1, why="can't start ./run.sh: Permission denied"),
            (),
            "run-not-started",
            "./run.sh",
            "chmod +x ./run.sh    # on n2; then launch again",
        ),
        (
            # A program of PATH has its x bit: its directory or its interpreter can't be read.
            _event("failed", 1, why="can't start nope: Permission denied"),
            (),
            "run-not-started",
            "nope",
            "command -v nope",
        ),
        (
            _event("exited", 1, code=2),
            ("python3: can't open file '/x/t.py': [Errno 2]",),
            "run-exited",
            "/x/t.py",
            "ls",
        ),
        (_event("exited", 1, code=3), (), "run-exited", "printed nothing", "aboard logs"),
        (_event("exited", 1, code=-7), (), "run-killed", "SIGBUS", "df -h /dev/shm    # on n2"),
        (_event("exited", 1, code=-40), (), "run-killed", "signal 40", "aboard logs"),
        (
            _event("exited", 1, code=1),
            ("ModuleNotFoundError: No module named 'flash_attn'",),
            "run-exited",
            "flash_attn",
            "ssh n2 'python3 -m pip install flash_attn'    # here; ",
        ),
    ],
)
def test_each_way_to_die(event: Event, tail: tuple[str, ...], code: str, said: str, fix: str) -> None:
    """Each has its code, what was seen, and something to type."""
    (finding,) = _ending(event, tails={1: tail})
    assert (finding.code, finding.nodes) == (code, ("n2",))
    assert said in finding.seen
    assert fix in finding.fix


@pytest.mark.parametrize(
    "tail",
    [
        ("WARNING:root:port: 29500 is taken: Address already in use; another one is tried",),
        ("/home/me/train.py:7: UserWarning: CUDA out of memory, the batch is halved",),
        ("/home/me/train.py:7: UserWarning: x", '  warnings.warn("CUDA out of memory, the batch is halved")'),
        ("[W1116 02:20:00.1 socket.cpp:752] [c10d] Connection refused, trying again", "epoch 3 done"),
        ("OSError: [Errno 24] Too many open files", "WARNING:root:going on without a cache"),
        ("OSError: [Errno 24] Too many open files", "going on without a cache"),
    ],
)
def test_an_exit_code_is_not_explained_by_a_warning_before_it(tail: tuple[str, ...]) -> None:
    """What the rank printed last is shown as evidence; nothing of it is called the cause or leads to a fix."""
    (finding,) = _ending(_event("exited", 1, code=3), tails={1: tail})
    quoted = ", ".join(f'"{line.strip()}"' for line in tail)
    assert finding.seen == f"rank 1 on n2, waiting, exited with code 3; the last lines of its output: {quoted}"
    assert "Look for what exits with 3" in finding.why
    assert finding.fix == "aboard logs r --rank 1    # the end of the rank's output"


def test_an_exception_explains_an_exit_code_though_warnings_follow_it() -> None:
    """Without a beacon, the traceback on stderr says it; torch warns of an open process group behind it."""
    tail = ("Traceback (most recent call last):", '  File "t.py", line 1', "OSError: [Errno 24] Too many open files")
    warning = "[W1116 02:20:00.1 ProcessGroupGloo.cpp:9] destroy_process_group() was not called"
    (finding,) = _ending(_event("exited", 1, code=1), tails={1: (*tail, warning)})
    assert finding.seen.endswith('exited with code 1: "OSError: [Errno 24] Too many open files" at t.py:1')
    assert finding.fix.startswith("ulimit -n    # on n2; ")


def test_a_rank_that_warned_of_a_refused_connection_is_still_the_cause_of_its_exit() -> None:
    """Only an error makes a death an echo of another rank's."""
    warned = {1: ("WARNING:root:Connection refused, trying again",)}
    (finding,) = _ending(_event("exited", 1, 5.0, code=3), _event("exited", 0, 5.5, code=4), tails=warned)
    assert finding.ranks == (1,)


def test_a_stopped_rank() -> None:
    """It lives and does nothing; it is named all the same."""
    (finding,) = _ending(_event("started", 1), _event("stopped", 1))
    assert (finding.code, finding.ranks) == ("run-rank-stopped", (1,))


def test_what_would_not_die_is_said() -> None:
    """Beside the verdict, with its process numbers."""
    _, finding = _ending(_event("exited", 0, code=1), _event("ended", 1, stubborn=[4711]))
    assert (finding.code, finding.nodes) == ("run-stubborn", ("n2",))
    assert "4711" in finding.seen


def test_words_of_a_rank_can_not_touch_a_terminal() -> None:
    """An escape sequence in an exception is shown, not obeyed."""
    (finding,) = _ending(_event("raised", 1, type="E", message="\x1b[2J"), _event("exited", 1, code=1))
    assert "\x1b" not in finding.seen


def test_who_dies_after_the_end_was_decided_is_no_cause() -> None:
    """A run that is ended because of a stopped rank takes the others down: none of them is blamed."""
    (finding,) = _ending(
        _event("started", 1),
        _event("stopped", 1, 5.0),
        made_event("deciding", node="", at=6.0, why="rank 1 is stopped"),
        _event("exited", 0, 6.5, code=-15),
        _event("exited", 1, 7.0, code=-9),
    )
    assert finding.code == "run-rank-stopped"


def _seen(rank: int, **node: Any) -> dict[str, NodeSnapshot]:
    return {f"n{rank + 1}": NodeSnapshot(at=9.0, **node)}


def test_a_kill_for_want_of_memory_is_the_kernels_own_word() -> None:
    """Its counter has grown since the run began; without that, a SIGKILL may be anybody's."""
    run = Run.replay("r", [_event("exited", 1, code=-9)])
    grown = _seen(1, oom_before=2, oom_kills=3, limit=512 << 20, held=23 << 20)
    (finding,) = ending(Evidence(plan=PLAN, run=run, snapshots=grown))
    assert finding.code == "run-out-of-memory"
    assert finding.seen.endswith("its cgroup is limited to 512 MiB")
    assert "23 MiB" not in finding.seen  # what is left after the kill
    same = _seen(1, oom_before=3, oom_kills=3)
    assert ending(Evidence(plan=PLAN, run=run, snapshots=same))[0].code == "run-killed"


def test_the_kernel_is_quoted_on_what_it_killed() -> None:
    """Its last line about that, not what else it said."""
    run = Run.replay("r", [_event("exited", 1, code=-9)])
    lines = ("[1.0] oom-kill:constraint=NONE", "[1.1] Out of memory: Killed process 7 (python)", "[1.2] eth0: link up")
    for kernel, quoted in ((lines, "Killed process 7 (python)"), ((lines[0], lines[2]), "oom-kill:constraint=NONE")):
        seen = _seen(1, oom_before=0, oom_kills=1, kernel=tuple(map(Untrusted, kernel)))
        assert ending(Evidence(plan=PLAN, run=run, snapshots=seen))[0].seen.endswith(quoted)


def test_a_stall_is_what_a_run_ended_of_unless_a_rank_died_by_itself() -> None:
    """Whoever gives up waiting only follows from it; a run without a cry ends of its first death."""
    stall = made_finding(code="hang-lock", severity=Severity.WARN, nodes=("n2",), seen="s", why="w", fix="f")
    gave_up = Evidence(plan=PLAN, run=Run.replay("r", _lost(0, 2.0, "Connection closed by peer [10.0.0.2]:4711")))
    (finding,) = conclude_run(gave_up, stall, was_stopped=False).findings
    assert (finding.code, [each.code for each in finding.consequences]) == ("hang-lock", ["run-raised"])
    died = Evidence(plan=PLAN, run=Run.replay("r", [_event("exited", 0, code=-9)]))
    assert [each.code for each in conclude_run(died, stall, was_stopped=False).findings] == ["run-killed"]
    assert [each.code for each in conclude_run(died, stall, was_stopped=True).findings] == ["hang-lock"]
    assert conclude_run(died, None, was_stopped=True).findings == ()


def test_a_node_that_gave_no_answer_is_not_taken_for_one_that_has_memory() -> None:
    """A kill on a node that could not be looked at says so: want of memory isn't ruled out."""
    run = Run.replay("r", [_event("exited", 0, code=-9)])
    (finding,) = ending(Evidence(plan=PLAN, run=run, unheard={"n1": "no reply within 3.5 s"}))
    assert finding.code == "run-killed"
    assert "n1 could not be inspected: no reply within 3.5 s" in finding.seen
    ended = Run.replay("r", [_event("exited", 0, code=-9), made_event("ended", node="n1", seq=2, at=1.1)])
    (finding,) = ending(Evidence(plan=PLAN, run=ended, unheard={"n1": "its supervisor can no longer be reached"}))
    assert "inspected" not in finding.seen, "its only rank was over, and its supervisor ended in order"


def test_ranks_that_could_not_reach_a_peer_name_it() -> None:
    """Who gives up at connecting is not the cause; the node that refused it is, as long as nobody there died first."""

    def refused(rank: int, at: float) -> Event:
        said = "Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: SO_ERROR: Connection refused, "
        return _event("raised", rank, at, type="RuntimeError", message=f"{said}remote=[10.0.0.2]:28048$4", trace="")

    tries = [refused(0, 2.0), _event("exited", 0, 2.1, code=1), refused(2, 3.0), _event("exited", 2, 3.1, code=1)]
    nodes = {f"n{at}": NodeSnapshot(at=1.0, addresses=(("eth0", f"10.0.0.{at}"),)) for at in (1, 2, 3)}
    (finding,) = ending(Evidence(plan=PLAN, run=Run.replay("r", tries), snapshots=nodes))
    assert (finding.code, finding.nodes, finding.ranks) == ("network-ephemeral-refused", ("n2",), (1,))
    killed = [_event("exited", 1, 1.9, code=-9), *tries]
    assert ending(Evidence(plan=PLAN, run=Run.replay("r", killed), snapshots=nodes))[0].code == "run-killed"


def _lost(rank: int, at: float, message: str) -> list[Event]:
    raised = _event("raised", rank, at, type="RuntimeError", message=f"[pair.cc:537] {message}", trace="")
    return [raised, _event("exited", rank, at + 0.1, code=1)]


def test_ranks_that_were_told_to_connect_to_themselves_name_the_loopback() -> None:
    """Nodes whose own name stands for it; where none does, an interface was set that is wrong on all."""
    said = "Gloo connectFullMesh failed with [pair.cc:152] SO_ERROR: Connection refused, remote=[127.0.0.1]:45476$4"
    tries = Run.replay("r", _lost(2, 2.0, said))
    (finding,) = ending(Evidence(plan=PLAN, run=tries))
    assert (finding.code, finding.nodes) == ("init-loopback", ("n1", "n2", "n3"))
    named = {"n2": NodeSnapshot(at=1.0, hostname="n2", names={"n2": ("127.0.1.1",)})}
    (finding,) = ending(Evidence(plan=PLAN, run=tries, snapshots=named))
    assert (finding.code, finding.nodes) == ("init-loopback", ("n2",))


def test_connections_that_end_though_nobody_died_are_cut_between_the_nodes() -> None:
    """The node that all of them have in common is named, and of a single one both ends; a death explains it else."""
    nodes = {f"n{at}": NodeSnapshot(at=1.0, addresses=(("eth0", f"10.0.0.{at}"),)) for at in (1, 2, 3)}
    reset = "Read error [10.0.0.2]:49814: Connection reset by peer. This is typically caused by a remote worker"
    closed = "Connection closed by peer [10.0.0.2]:1685. This is typically caused by a remote worker crashing."
    one, both = _lost(0, 2.0, reset), [*_lost(0, 2.0, reset), *_lost(2, 2.3, closed)]
    (finding,) = ending(Evidence(plan=PLAN, run=Run.replay("r", one), snapshots=nodes))
    assert (finding.code, finding.nodes) == ("network-reset", ("n2", "n1"))
    (finding,) = ending(Evidence(plan=PLAN, run=Run.replay("r", both), snapshots=nodes))
    assert (finding.code, finding.nodes) == ("network-reset", ("n2",))
    gave_up = _lost(1, 1.0, "Timed out waiting 1800000ms for recv operation to complete")
    (finding,) = ending(Evidence(plan=PLAN, run=Run.replay("r", [*gave_up, *both]), snapshots=nodes))
    assert (finding.code, finding.nodes) == ("run-raised", ("n2",))


def test_ranks_that_met_with_different_sizes_went_apart() -> None:
    """Gloo ends the one that got too much: that is no death of its own."""
    said = (
        "terminate called after throwing: [enforce fail at pair.cc:454] op.preamble.length <= op.nbytes. 640000 vs 64"
    )
    run = Run.replay("r", [_event("exited", 2, 2.0, code=-6)])
    (finding,) = ending(Evidence(plan=PLAN, run=run, tails={2: (Untrusted(said),)}))
    assert (finding.code, finding.nodes, finding.ranks) == ("hang-mismatch", ("n3",), (2,))
    assert ending(Evidence(plan=PLAN, run=run, tails={2: (Untrusted("Aborted"),)}))[0].code == "run-killed"


def test_of_two_ranks_in_different_collectives_both_are_named_with_their_lines() -> None:
    """Gloo ends the one that got too much, and not the one that left a call out: with two, either may be wrong."""
    pair = replace(PLAN, parts=PLAN.parts[:2])
    aborted = 'Thread 0x01 (most recent call first):\n  File "/x/site-packages/torch/distributed/distributed_c10d.py"'
    aborted += ', line 3252 in all_reduce\n  File "/home/me/train.py", line 13 in step\n'
    trace = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 18, in <module>\n    step(5)\n'
    trace += '  File "/home/me/train.py", line 14, in step\n    dist.all_reduce(small)\n'
    reset = "Read error [10.0.0.1]:4: Connection reset by peer"
    events = [
        _event("exited", 0, 2.0, code=-6, stack=aborted),
        _event("raised", 1, 2.1, type="RuntimeError", message=reset, trace=trace),
        _event("exited", 1, 2.3, code=1),
    ]
    said = Untrusted("what():  [enforce fail at pair.cc:454] op.preamble.length <= op.nbytes. 640000 vs 64")
    (finding,) = ending(Evidence(plan=pair, run=Run.replay("r", events), tails={0: (said,)}))
    assert (finding.code, finding.nodes, finding.ranks) == ("hang-mismatch", ("n1", "n2"), (0, 1))
    assert "rank 0 on n1 was at train.py:13 in step, in all_reduce; rank 1 on n2 was at train.py:14" in finding.seen
    assert "either may be wrong" in finding.why


def test_an_exception_is_told_with_the_users_line_that_led_to_it() -> None:
    """The innermost line of the user's own code, of the exception that ended the rank."""
    trace = (
        'Traceback (most recent call last):\n  File "/home/me/data.py", line 3, in read\nKeyError: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 40, in <module>\n    main()\n'
        '  File "/home/me/train.py", line 31, in main\n    model(batch)\n'
        '  File "/x/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl\n    raise\n'
        "ValueError: bad batch\n"
    )
    (finding,) = _ending(
        _event("raised", 1, 5.0, type="ValueError", message="bad batch", trace=trace), _event("exited", 1, 5.4, code=1)
    )
    assert finding.seen == "rank 1 on n2, waiting, raised ValueError: bad batch at train.py:31 in main"


def test_a_barrier_that_ran_out_of_time_names_who_did_not_come() -> None:
    """The others lost their connections to whoever gave up first; the one that is meant has not died at all."""
    echo = "Rank 0 successfully reached monitoredBarrier, but received errors: Connection closed by peer [10.0.0.1]:1"
    tries = [*_lost(0, 2.0, echo), *_lost(2, 2.5, "Rank 1 failed to pass monitoredBarrier in 20000 ms")]
    (finding,) = ending(Evidence(plan=PLAN, run=Run.replay("r", tries)))
    assert (finding.code, finding.nodes, finding.ranks) == ("hang-absent", ("n2",), (1,))


def test_a_barrier_that_a_rank_went_on_without_is_no_cause() -> None:
    """Who raised and still left well has not died of it: the rank that died is named, not whom the other missed."""
    (finding,) = _ending(
        *_lost(0, 2.0, "Connection closed by peer [10.0.0.2]:4711"),
        _event("raised", 2, 2.5, type="RuntimeError", message="Rank 1 failed to pass monitoredBarrier in 20000 ms"),
        _event("exited", 2, 9.0, code=0),
    )
    assert (finding.code, finding.ranks) == ("run-raised", (0,))


def test_full_disks_are_told_with_what_is_left() -> None:
    """A bus error by /dev/shm, an exception by the disk that has no room."""
    shm = _seen(0, disks=(DiskUsage(path=Untrusted("/dev/shm"), free=0, size=64 << 20),))
    (finding,) = ending(Evidence(plan=PLAN, run=Run.replay("r", [_event("exited", 0, code=-7)]), snapshots=shm))
    assert finding.code == "run-shm-full"
    raised = _event("raised", 2, 1.0, type="OSError", message="[Errno 28] No space left on device")
    full = _seen(
        2,
        disks=(
            DiskUsage(path=Untrusted("/tmp"), free=1 << 30, size=2 << 30),
            DiskUsage(path=Untrusted("/out"), free=0, size=1 << 30),
        ),
    )
    run = Run.replay("r", [raised, _event("exited", 2, 2.0, code=1)])
    (finding,) = ending(Evidence(plan=PLAN, run=run, snapshots=full))
    assert finding.code == "run-disk-full"
    assert "/out has 0 B" in finding.seen


def test_a_rank_that_left_early_is_named_not_those_who_missed_it() -> None:
    """Its end was a good one, and everybody else lost a connection to it."""
    (finding,) = _ending(
        _event("exited", 2, 4.0, code=0),
        _event("raised", 0, 4.5, type="RuntimeError", message="Connection closed by peer [10.0.0.3]:4711"),
        _event("exited", 0, 5.0, code=1),
        made_event("deciding", node="", at=5.1, why="rank 0 died", death=True),
        _event("exited", 1, 6.0, code=-15),
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("hang-uneven", ("n3",), (2,))


def _node_event(kind: str, node: str, at: float, **data: Any) -> Event:
    return made_event(kind, node=node, seq=1, at=at, **data)


def _started() -> list[Event]:
    held = [_node_event("held", f"n{rank + 1}", 0.5) for rank in range(3)]
    return [*held, *(_event("started", rank, 1.0) for rank in range(3))]


def test_a_killed_guard_is_the_verdict_and_not_the_signal_of_its_rank() -> None:
    """What the supervisor says about the end counts for more than exit codes, which are those that it caused."""
    (finding,) = _ending(
        *_started(),
        _node_event("ending", "n2", 5.0, why="the supervisor's guard process was killed", cause="guard"),
        _event("exited", 1, 5.1, code=-9),
        _node_event("deciding", "", 5.2, why="", death=True),
        _event("exited", 0, 6.0, code=-15),
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("run-agent-killed", ("n2",), (1,))
    assert finding.seen == "the supervisor's guard process on n2 was killed; the supervisor ended its rank"
    assert "aboard check n2 --only host" in finding.fix


def test_a_killed_supervisor_is_named_with_the_signal() -> None:
    """A rank elsewhere that lost its peer died later, although the head heard of it earlier."""
    (finding,) = _ending(
        *_started(),
        _event("exited", 0, 5.2, code=3),
        _node_event("gone", "n2", 6.0, why="no longer running", supervisor=9, guard=9, killed=2, ago=1.0),
    )
    assert (finding.code, finding.nodes) == ("run-agent-killed", ("n2",))
    assert finding.seen == (
        "the supervisor and its guard process on n2 were killed by SIGKILL; the agent ended its rank"
    )


def test_a_rank_that_died_before_its_supervisor_is_the_verdict() -> None:
    """The supervisor's end is reported beside it."""
    findings = _ending(
        *_started(),
        _event("exited", 0, 4.0, code=-9),
        _node_event("gone", "n2", 6.0, why="no longer running", supervisor=9, killed=0),
    )
    assert [finding.code for finding in findings] == ["run-killed", "run-agent-killed"]


def test_a_head_that_was_stopped_is_the_verdict_and_not_what_its_nodes_did() -> None:
    """Its nodes ended their ranks when the lease expired; without a pause of the head, the network is to be checked."""
    lease = "the lease of 8 s expired"
    events = [
        *_started(),
        *(_node_event("ending", f"n{rank + 1}", 14.0, why=lease, cause="lease") for rank in range(3)),
        *(_event("exited", rank, 14.1, code=-9) for rank in range(3)),
    ]
    (finding,) = _ending(*events, _node_event("paused", "", 20.0, seconds=15.0))
    assert (finding.code, finding.ranks) == ("run-head-paused", (0, 1, 2))
    assert "did not run for 15 s" in finding.seen
    assert lease in finding.seen
    (finding,) = _ending(*events)
    assert (finding.code, finding.nodes) == ("run-lease-expired", ("n1", "n2", "n3"))


def test_what_was_stopped_and_continued_is_worth_a_line() -> None:
    """The run ended well; what happened to Aboard's own processes is said, and is no error."""
    findings = _ending(
        *_started(),
        _node_event("continued", "n1", 2.0, process="guard"),
        _node_event("continued", "n1", 4.0, process="guard"),
        _node_event("killed", "n2", 3.0, process="bridge"),
        _node_event("paused", "", 5.0, seconds=12.0),
        *(_event("exited", rank, 9.0, code=0) for rank in range(3)),
    )
    assert {finding.severity for finding in findings} == {Severity.INFO}
    assert sorted(finding.code for finding in findings) == [
        "run-agent-disturbed",
        "run-agent-disturbed",
        "run-head-paused",
    ]
    said = " ".join(finding.seen for finding in findings)
    assert "guard process on n1 was stopped by a signal 2 times; Aboard continued it" in said
    assert "(its bridge process) on n2 was killed; the conductor connected again" in said


def test_damaged_reports_of_ranks_are_told_once_with_their_nodes() -> None:
    """As information: what else is said of these ranks may lack something."""
    snapshots = {name: NodeSnapshot(malformed=count) for name, count in (("n1", 0), ("n2", 1200))}
    (found,) = report_floods(Evidence(plan=PLAN, run=Run(id="r"), snapshots=snapshots))
    assert (found.code, found.severity, found.nodes) == ("run-reports-damaged", Severity.INFO, ("n2",))
    assert found.seen == "reports of ranks that could not be read: 1,200 on n2"


def test_a_run_that_restarts_by_itself_is_not_to_be_launched_again() -> None:
    """Only that advice is left out of its fixes: the command and the rest of its comment stay."""
    fixes = {
        "aboard check n3    # is it back? then launch again": "aboard check n3    # is it back?",
        "aboard check n3    # when it is back, launch again": "aboard check n3    # when it is back",
        "scp a b    # here; if n1 has the file; then launch again": "scp a b    # here; if n1 has the file",
        "aboard check n3    # then launch again, with a longer --lease if needed": "aboard check n3",
        "dmesg    # on n1; out of memory? if not, launch again\nls": "dmesg    # on n1; out of memory?\nls",
        "aboard logs r --rank 1    # the end of it": "aboard logs r --rank 1    # the end of it",
    }
    found = omit_relaunch(
        [
            made_finding(code="run-node-gone", severity=Severity.BLOCK, nodes=(), seen="", why="", fix=fix)
            for fix in fixes
        ]
    )
    assert [each.fix for each in found] == list(fixes.values())
    (folded,) = omit_relaunch([replace(found[0], consequences=(replace(found[0], fix=Fix(next(iter(fixes)))),))])
    assert folded.consequences[0].fix == "aboard check n3    # is it back?"
