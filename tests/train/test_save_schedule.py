"""`save_steps: auto`: rank 0 decides, and all ranks save at the same steps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from train_cases import curve, lines, saved_by_cost, trained
from train_crew import Crew

from aboard.core.plan.training_settings import Training

Settled = Callable[..., Training]


def list_saved(training: Training) -> list[int]:
    folders = Path(training.output_dir).glob("step-*/manifest.json")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folders)


def test_all_ranks_save_when_rank_0_decides(settled: Settled, crew: Crew, tmp_path: Path) -> None:
    """By lines that ranks exchange anyway; losses are those of any other interval, and a resume knows the cost."""
    training = settled(max_steps=40, global_batch_size=4, sharding="full", logging_steps=2, save_steps="auto")
    sums = crew.run(2, saved_by_cost, training, 10**6)
    usual = replace(training, save_steps=5, output_dir=str(tmp_path / "usual"))
    assert crew.run(2, saved_by_cost, usual, 10**6) == sums
    assert curve(training) == curve(usual)
    assert "save_steps" not in lines(usual)[0]

    logged = {line["step"]: line for line in lines(training) if "loss" in line}
    assert logged[2]["save_why"] == "no save has been measured yet"
    assert logged[40]["save_why"].startswith("a save ")
    due, last, every = [], 0, 10**9
    for step in range(1, 41):
        every = logged[step]["save_steps"] if step in logged else every
        if step - last >= every or step == 40:
            due.append(step)
            last = step
    assert list_saved(training) == due
    assert len(due) > 2

    crew.run(2, trained, replace(training, max_steps=44))
    assert lines(training)[-2]["save_why"].startswith("a save stalls training for ")
