"""metrics.jsonl after a crash: each step once, whoever was killed and whenever."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from deadlines import slowness
from train_cases import curve, lines, trained
from train_crew import Crew, environment, free_port

from aboard.core.plan.training_settings import Training
from aboard.trainer.metrics.metrics_report import MetricsReporter, drop_lost_lines

PATIENCE = 120.0 * slowness()


def killed(training: Training, step: int) -> None:
    """A rank that gets SIGKILL when it has logged so many steps."""
    write = MetricsReporter.line

    def write_and_die(self: MetricsReporter, metrics: Mapping[str, Any]) -> None:
        write(self, metrics)
        if metrics["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    os.environ |= environment(0, 1, free_port())
    with patch.object(MetricsReporter, "line", write_and_die):
        trained(training)


def saved(training: Training) -> int:
    """The newest step that has a marker."""
    return max(int(path.parent.name[5:11]) for path in Path(training.output_dir).glob("step-*/manifest.json"))


def test_steps_that_a_killed_run_lost_are_there_once(settled: Callable[..., Training], crew: Crew) -> None:
    """Killed after steps that it had not saved; the next one has them again, as the uninterrupted run has."""
    training = settled(max_steps=50, save_steps=30, save_async=False, global_batch_size=1)
    rank = crew.start_process(killed, training, 37)
    rank.join(PATIENCE)
    assert rank.exitcode == -signal.SIGKILL
    before = lines(training)
    lost = [line["step"] for line in before if line["step"] > saved(training)]
    assert lost == list(range(31, 38))
    crew.run(1, trained, training)
    assert [line["step"] for line in lines(training) if "loss" in line] == list(range(1, 51))
    kept = len(before) - len(lost)
    assert lines(training)[:kept] == before[:kept]
    old = Path(training.output_dir) / "metrics.old-1.jsonl"
    assert [json.loads(line)["step"] for line in old.read_text("utf-8").splitlines()] == lost
    whole = replace(training, output_dir=f"{training.output_dir}-whole")
    crew.run(1, trained, whole)
    assert curve(training) == curve(whole)


def test_nothing_changes_where_nothing_was_lost(tmp_path: Path) -> None:
    """A run that ended well is gone on with as it is, its evaluations and its end included."""
    text = '{"step": 9, "loss": 1.0}\n{"step": 9, "eval_loss": 1.0}\n{"step": 9, "wall": 1.0}\n'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert drop_lost_lines(tmp_path, 9) is None
    assert (tmp_path / "metrics.jsonl").read_text() == text
    assert drop_lost_lines(tmp_path / "new", 0) is None


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step": 3, "loss": 1.0}', "\0\0\0\n", "[]\n"])
def test_half_a_line_does_not_spoil_the_next(torn: str, tmp_path: Path) -> None:
    """What a power cut left of the last line goes aside; else the next one would be glued to it."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n' + torn)
    assert drop_lost_lines(tmp_path, 5) == tmp_path / "metrics.old-1.jsonl"
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 2}\n'
    assert (tmp_path / "metrics.old-1.jsonl").read_text() == torn


def test_what_was_put_aside_before_stays(tmp_path: Path) -> None:
    """Each attempt has a file of its own; a training that begins anew has none of the old lines."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    drop_lost_lines(tmp_path, 2)
    drop_lost_lines(tmp_path, 0)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {
        "metrics.jsonl": "",
        "metrics.old-1.jsonl": '{"step": 3}\n',
        "metrics.old-2.jsonl": '{"step": 1}\n{"step": 2}\n',
    }


def test_the_head_is_told_all_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the newest figures only: those of an evaluation and of the end come with the loss of the same step.

    An evaluation stays until the next one: the step after it may be logged before the head has looked.
    """
    told: list[dict[str, float]] = []
    armed = SimpleNamespace(mention=lambda text: told.append(json.loads(f"{{{text}}}")["metrics"]))
    monkeypatch.setitem(sys.modules, "aboard_beacon", SimpleNamespace(armed=armed))
    training = Training(model="m", data=(), output_dir=str(tmp_path), max_length=8)
    logged = {"loss": 2.0, "learning_rate": 1.0, "grad_norm": 1.0, "tokens_per_second": 1.0, "mfu": None, "eta": 1.0}
    with MetricsReporter(training, main=True) as report:
        report.begin(0)
        report.line({"step": 4, "steps": 5, **logged})
        report.line({"step": 4, "steps": 5, "eval_loss": 3.0})
        report.line({"step": 5, "steps": 5, **logged})
        report.line({"step": 5, "steps": 5, "eval_loss": 2.5})
    assert [(each["step"], each.get("loss"), each.get("eval_loss")) for each in told] == [
        (4, 2.0, None),
        (4, 2.0, 3.0),
        (5, 2.0, 3.0),
        (5, 2.0, 2.5),
    ]
