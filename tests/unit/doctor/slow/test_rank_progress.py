"""A run that makes progress is never called hung: its progress is the answer."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from evidence_builders import NOW, at_collective, evidence, in_collective, process, stack
from rich.console import Console

from aboard.commands.why.verdict_view import VerdictView
from aboard.core.evidence.node_snapshot import CollectiveRecord, RankSnapshot
from aboard.core.evidence.python_stacks import classify_activity, find_user_frame, parse_main_thread
from aboard.core.evidence.rank_progress import describe_progress
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.core.run.events import Measurement
from aboard.core.run.rank_phases import Phase
from aboard.doctor.judge_evidence import judge_evidence, judge_live_run
from aboard.record.json_documents import decode_judgement, encode_judgement

LIB = "/x/lib/python3.11/site-packages"
TRAINER = (
    ("/run/aboard/brave-otter/code.zip/aboard/trainer/step.py", 61, "run_step"),
    ("/run/aboard/brave-otter/code.zip/aboard/trainer/__main__.py", 9, "<module>"),
    ("<frozen runpy>", 88, "_run_code"),
    ("<frozen runpy>", 198, "_run_module_as_main"),
)
BUSY = process(states="RRRRRRRR", cpu=1.0)


def two(late: RankSnapshot, *, seconds: float, **given: Any) -> Evidence:
    """Rank 0 waits in the 20th collective since then, rank 1 has not come."""
    waiting = in_collective(groups=(at_collective(20, at=NOW - seconds),))
    before = replace(late, groups=(at_collective(19, over=True, at=NOW - seconds - 1),))
    return evidence({0: waiting, 1: before}, per_node=1, **given)


def with_steps(given: Evidence, step: int, total: int) -> Evidence:
    for rank, node in ((0, "n1"), (1, "n2")):
        metrics = {"step": float(step), "steps": float(total)} if rank == 0 else {}
        given.run.take(Measurement(node=node, at=NOW, child=str(rank), values={"step": float(step)}, metrics=metrics))
    return given


@pytest.mark.parametrize(
    "late",
    [
        RankSnapshot(process=BUSY, stack=stack(*TRAINER)),
        RankSnapshot(process=process(), stack=stack((f"{LIB}/torch/serialization.py", 9, "save"), *TRAINER)),
        RankSnapshot(process=process(call="futex"), stack=stack(("/home/me/train.py", 3, "main"))),
    ],
)
def test_a_run_that_makes_steps_is_not_called_hung_wherever_its_ranks_are(late: RankSnapshot) -> None:
    """Ranks always wait for each other: that some of them do between two steps is no finding."""
    given = with_steps(two(late, seconds=0.3, quiet=0.4, pace=0.31), 40, 345)
    assert judge_evidence(given).findings, "the ranks are seen as they are in a hang"
    why = decode_judgement(encode_judgement(judge_live_run(given)))
    assert (why.findings, why.advancing) == ((), True)
    said = render(why)
    assert "the run makes progress: step 40 of 345, 310.0 ms per step; last progress 0.3 s ago" in said
    assert "hang" not in said


def test_collectives_that_go_on_are_progress_without_any_step() -> None:
    """A script without an optimizer, or a long evaluation, advances from one collective to the next."""
    given = two(RankSnapshot(process=BUSY), seconds=1.0, quiet=600.0, default=Phase.COLLECTIVE, usual=None)
    why = judge_live_run(given)
    assert (why.findings, why.advancing, why.progress) == ((), True, "19 collectives done")
    stuck = two(RankSnapshot(process=BUSY), seconds=90.0, quiet=600.0, default=Phase.COLLECTIVE, usual=None)
    assert [found.code for found in judge_live_run(stuck).findings] == ["hang-loop"]


def test_a_wait_that_is_not_too_long_yet_is_told_without_a_verdict() -> None:
    """While one rank saves, the answer is how far the run is, and what the others wait for."""
    saving = RankSnapshot(process=process(), doing="checkpoint", stack=stack(*TRAINER))
    why = judge_live_run(with_steps(two(saving, seconds=6.0, quiet=6.0, pace=0.3), 40, 345))
    assert [found.code for found in why.findings] == ["hang-busy"]
    said = render(why)
    assert "nothing wrong was found: step 40 of 345" in said
    assert "rank 1 on n2 is writing or reading a checkpoint" in said
    assert "hang-busy" not in said


def test_who_is_slower_is_told_of_a_run_that_makes_progress() -> None:
    """A rank that the others wait for in every step is no hang, and worth a note."""
    late = [CollectiveRecord(seq=seq, op="gloo:all_reduce", at=NOW - 21 + seq + 0.6, over=True) for seq in range(8, 20)]
    record = replace(at_collective(20, at=NOW - 0.5), entries=tuple(late))
    waiting = in_collective(groups=(at_collective(20, at=NOW - 1.0),))
    slower = RankSnapshot(process=BUSY, groups=(replace(record, enqueued=19, completed=19),))
    given = with_steps(evidence({0: waiting, 1: slower}, per_node=1, quiet=0.5, pace=1.0, usual=1.0), 40, 345)
    why = judge_live_run(given)
    assert [(found.code, found.ranks) for found in why.findings] == [("slow-rank", (1,))]
    said = render(why)
    assert said.index("the run makes progress: step 40 of 345") < said.index("slow-rank")


def test_a_stopped_rank_is_named_although_the_last_step_is_recent() -> None:
    """Progress overrules hangs only: a process in state T does not run, whatever it did a second ago."""
    stopped = RankSnapshot(process=process(state="T", states="TTTTTTTT"))
    why = judge_live_run(with_steps(two(stopped, seconds=1.0, quiet=1.0), 40, 345))
    assert [found.code for found in why.findings] == ["run-rank-stopped"]


def test_before_the_first_collective_the_phase_is_the_progress() -> None:
    given = evidence({0: RankSnapshot(), 1: RankSnapshot()}, per_node=1, phases={0: Phase.GROUP, 1: Phase.TORCH})
    assert describe_progress(given) == "process group ready (1 of 2 ranks)"


def test_the_place_of_a_rank_is_in_the_users_or_the_models_code() -> None:
    """Neither Python's start-up, nor torch, nor Aboard's own loop is a place to look at."""
    model = (f"{LIB}/transformers/models/llama/modeling_llama.py", 250, "forward")
    torch = (f"{LIB}/torch/nn/modules/module.py", 1775, "_wrapped_call_impl")
    frames = parse_main_thread(stack(torch, model, torch, *TRAINER))
    assert str(find_user_frame(frames)) == "modeling_llama.py:250 in forward"
    assert find_user_frame(parse_main_thread(stack(torch, *TRAINER))) is None
    own = ("/home/me/model.py", 7, "forward")
    assert str(find_user_frame(parse_main_thread(stack(torch, model, own, *TRAINER)))) == "model.py:7 in forward"


def test_gradient_checkpointing_is_no_checkpoint() -> None:
    recomputing = stack(
        ("/home/me/model.py", 7, "forward"),
        (f"{LIB}/torch/utils/checkpoint.py", 488, "checkpoint"),
        ("/home/me/model.py", 30, "gradient_checkpointing_call"),
    )
    assert classify_activity(parse_main_thread(recomputing)) == ""


def render(why: Judgement) -> str:
    said = StringIO()
    Console(width=200, file=said).print(VerdictView("brave-otter", why, verbose=False))
    return said.getvalue()
