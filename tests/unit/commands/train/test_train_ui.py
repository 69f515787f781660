"""A training on the screen and in a pipe."""

import json
from dataclasses import asdict, replace

import pytest
from made_findings import made_finding
from rich.console import Console
from run_states import Scene

from aboard.commands.launch.view.finished_run import FinishedRun, format_summary_lines
from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.commands.launch.view.roster_view import RosterView
from aboard.commands.launch.view.training_progress import TrainingProgressView, draw_curve, format_progress_line
from aboard.commands.train.config_view import (
    TrainConfigView,
    describe_data,
    describe_mix,
    describe_steps,
    format_config_lines,
    render_label,
)
from aboard.core.decoding import decode
from aboard.core.plan.training_settings import Training
from aboard.core.run.events import Measurement
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import RunProgress
from aboard.core.run.training_metrics import TrainingStatus
from aboard.diagnoses import Severity
from aboard.trainer.settings.train_settings import ResolvedSetting

METRICS = {
    "step": 120.0,
    "steps": 400.0,
    "epoch": 0.6,
    "loss": 2.3141,
    "eval_loss": 2.5,
    "learning_rate": 1.2e-5,
    "grad_norm": 0.812,
    "tokens": 2.5e6,
    "tokens_per_second": 12_300.0,
    "memory": 3.5 * 2**30,
    "eta": 192.0,
}
WAY = TrainingStatus(metrics=METRICS, curve=((1, 4.0), (40, 3.0), (80, 2.5), (120, 2.3)))
VERDICT = made_finding(code="run-killed", severity=Severity.BLOCK, nodes=("n2",), seen="killed", why="w", fix="f")
TRAINING = Training(model="m", data=(), output_dir="/o", max_length=128, bf16=False)


def shown(what: object, width: int = 100, height: int = 40) -> list[str]:
    console = Console(width=width, height=height, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_how_far_a_training_is() -> None:
    """A bar with what is left, the figures, and the curve."""
    lines = shown(TrainingProgressView(WAY, lines=8))
    assert lines[0].endswith(" 30%  step 120 of 400 · epoch 0.60 · 3 min 12 s left")
    assert lines[1].startswith("loss 2.3141   eval loss 2.5000   lr 1.20e-05   grad norm 0.812   tokens/s 12.3 k")
    assert [line[:3] for line in lines[2:]] == ["  4", "   ", "   ", "   ", "2.3"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("lines", [2, 3, 4, 8, 30])
def test_it_keeps_within_its_room(width: int, lines: int) -> None:
    """However small the terminal is; and its height is what it says."""
    view = TrainingProgressView(WAY, lines=lines)
    found = shown(view, width)
    assert len(found) == view.height <= max(lines, 2)
    assert max(map(len, found)) <= width


def test_on_one_line_for_grep() -> None:
    """And what is not known is not said."""
    assert format_progress_line(WAY) == (
        "train step 120/400 · loss 2.3141 · eval loss 2.5000 · lr 1.20e-05 · grad norm 0.812 · tokens/s 12.3 k"
        " · memory 3.5 GiB · tokens 2.5 M · left 3 min 12 s"
    )
    assert format_progress_line(TrainingStatus(metrics={"step": 3.0})) == "train step 3"


def test_a_curve_falls_to_the_right_and_leaves_room_for_what_comes() -> None:
    """Dots of braille: the first at the top, the last at the bottom, nothing beyond it."""
    rows = draw_curve([(0, 2.0), (10, 1.0)], 4, 2, until=20)
    assert rows[0][0] != "\u2800"
    assert rows[1][1] != "\u2800"
    assert [row[2:] for row in rows] == ["\u2800\u2800"] * 2
    assert draw_curve([(0, 1.0), (5, 1.0)], 2, 1) == ["⣀⣀"]


def test_the_roster_has_it_below_its_heading_and_nodes_below_that() -> None:
    """Also seen from another process, through JSON."""
    scene = Scene(nodes=2, ranks=1)
    roster = replace(scene.at(10.0), training=WAY)
    there = decode(RunProgress, json.loads(json.dumps(asdict(roster))))
    assert there.training == WAY
    lines = shown(RosterView(there))
    assert any("step 120 of 400" in line for line in lines)
    assert any(line.startswith("n1") for line in lines)
    assert len(shown(RosterView(there), height=12)) <= 12


def test_bar_table_and_end_say_the_same_step() -> None:
    """The slowest rank's, of the training as a whole: its last log line is older."""
    scene = Scene(nodes=2, ranks=1)
    for phase in (Phase.STARTED, Phase.COLLECTIVE):
        scene.come(1.0, phase)
    metrics = {"step": 50.0, "steps": 300.0, "loss": 2.0, "eta": 500.0}
    for node, child, step in (("n1", "0", 57), ("n2", "1", 55)):
        told = metrics if child == "0" else {}
        scene.run.take(Measurement(node=node, at=1000.0, child=child, values={"step": step}, metrics=told))
    roster = scene.at(10.0)
    assert [row.step for row in roster.rows] == [57, 55]
    lines = shown(RosterView(decode(RunProgress, json.loads(json.dumps(asdict(roster))))))
    assert any("step 55 of 300" in line and "8 min 10 s left" in line for line in lines)
    assert format_progress_line(roster.training or WAY).startswith("train step 55/300")
    scene.event(10.0, "exited", "n2", "1", code=-9)
    scene.run.take(Measurement(node="n2", at=1010.0, child="1", values={}))
    ended = FinishedRun(
        progress=scene.at(11.0), findings=(VERDICT,), exit_code=137, directory="/r", command="aboard train", dropped={}
    )
    assert list(format_summary_lines(ended))[-1] == "done: failed after 11 s at step 55; 2 ranks, exit code 137"
    assert list(format_summary_lines(replace(ended, findings=())))[-1].startswith(
        "done: stopped after 11 s, 55 steps, loss 2.0"
    )


def test_in_a_pipe_a_step_is_told_once() -> None:
    """A slow training doesn't fill a log with the same line."""
    told: list[str] = []
    plain = PlainLaunchWriter(told.append)
    scene = Scene(nodes=1, ranks=1)
    for now in (1000.0, 1040.0, 1080.0):
        plain.update(replace(scene.at(10.0), training=WAY, step=120, now=now))
    assert [line for line in told if line.startswith("train step")] == [format_progress_line(WAY)]


def test_a_config_says_where_each_value_comes_from() -> None:
    """As YAML; what is not used is a comment."""
    choices = [
        ResolvedSetting(name="data.files", value=("a b.jsonl",), source="aboard.yaml:2:10"),
        ResolvedSetting(name="train.learning_rate", value=1e-5, source="default"),
        ResolvedSetting(name="train.bf16", value=None, source="default: true on GPUs"),
    ]
    assert list(format_config_lines(choices)) == [
        "data:",
        '  files: ["a b.jsonl"]  # aboard.yaml:2:10',
        "train:",
        "  learning_rate: 1e-05  # default",
        "  # bf16:               # default: true on GPUs",
    ]
    assert shown(TrainConfigView(choices)) == list(format_config_lines(choices))


def test_what_was_made_ready_in_sentences() -> None:
    """Rows, tokens and steps, so that a slip of a number is seen before it costs a day."""
    said = describe_data(documents=1200, tokens=80_000, supervised=20_000, sequences=40, length=2048, full=0.97)
    assert said == "1,200 documents, 80,000 tokens, 25% supervised; 40 packed sequences of 2,048 tokens, 97% full"
    training = replace(TRAINING, global_batch_size=16, num_train_epochs=3.0)
    assert describe_steps(training, ranks=4, nodes=2, sequences=40) == (
        "4 ranks on 2 nodes, micro-batch 1 × 4 accumulation steps: 16 sequences per step, 8 steps; float32"
    )
    assert describe_steps(replace(TRAINING, max_steps=7), ranks=1, nodes=1, sequences=40) == (
        "1 rank on 1 node, micro-batch 1: 1 sequence per step, 7 steps; float32"
    )


def test_a_mix_in_a_sentence() -> None:
    """How much of the training each source is, and how often all of it comes."""
    training = replace(TRAINING, num_train_epochs=2.0)
    assert describe_mix(training, ranks=1, parts=[("chats", 0.75, 30), ("code", 0.25, 70)]) == (
        "chats 75.0%, 5 epochs; code 25.0%, 0.71 epochs"
    )
    steps = replace(TRAINING, max_steps=10, global_batch_size=4)
    assert describe_mix(steps, ranks=1, parts=[("a", 1.0, 40)]) == "a 100.0%, 1 epochs"


@pytest.mark.parametrize("width", [40, 80, 110])
def test_what_was_made_ready_is_folded_below_itself(width: int) -> None:
    """It keeps within the terminal, and all of it is there; a path stays whole."""
    said = describe_data(
        documents=120_000, tokens=80_123_000, supervised=20_000, sequences=40_123, length=32_768, full=0.97
    )
    lines = render_label("data", f"{said} (cached)", width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line.startswith(" " * 8) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == f"data {said} (cached)"
    assert render_label("model", "/a/very-long/path-that/has-no/blanks", 20).plain.count("\n") == 0
