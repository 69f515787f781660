"""Figures of training other than speed: device syncs, memory estimates, save stalls, kills during saves."""

import sys
from functools import partial
from pathlib import Path
from statistics import median

from aboard.core.plan.training_settings import Training
from figures import Figures

# The benches reuse the harnesses of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))


def measure_waits(figures: Figures, training: Training) -> None:
    """Device syncs (values read back by the host) in 20 steps between two log lines."""
    from train_cases import waited  # noqa: PLC0415 - torch, which --help need not wait for
    from train_crew import Crew  # noqa: PLC0415 - as above

    crew = Crew()
    try:
        [stacks] = crew.run(1, waited, training)
    finally:
        crew.close()
    found = [stack for stack in stacks if any("train/step.py" in frame for frame in stack)]
    figures.add("device syncs in 20 steps", len(found), 0, note="_local_scalar_dense and similar")


def measure_memory(figures: Figures, folder: Path) -> None:
    """The memory estimate before a launch against measured memory: three models, three layouts, four ranks."""
    from model_cases import FAMILIES, SHAPE, estimated_and_measured, without_weights  # noqa: PLC0415 - as above
    from train_crew import Crew  # noqa: PLC0415 - as above

    crew = Crew()
    try:
        for family, own in FAMILIES.items():
            crew.run(1, partial(without_weights, folder / family, family, **{**SHAPE, **own}))
        case = partial(estimated_and_measured, folder, list(FAMILIES), (2, 2), bf16=False)
        told = crew.run(4, case, nodes=2)[0]
    finally:
        crew.close()
    worst = max(told, key=lambda one: abs(one.told / one.measured - 1))
    note = f"{len(told)} cases; worst {worst.family}, {worst.layout}"
    figures.add(
        "memory of states: relative error of the estimate", abs(worst.told / worst.measured - 1), 0.1, note=note
    )


def measure_stalls(figures: Figures) -> None:
    from save_stall import stall  # noqa: PLC0415 - as above

    found = stall(rounds=7)
    longer = median(each - alone for each, alone in zip(found.beside, found.step, strict=True))
    size = f"{found.parameters / 1e6:.0f}M parameters, synchronous save {median(found.synchronous):.1f} s"
    note = f"{size}; the step during the save took {longer:.1f} s longer"
    figures.add("stall of an asynchronous save / a synchronous save", found.share, 0.1, note=note)


def measure_kills(figures: Figures, count: int) -> None:
    from kills import kills as killed  # noqa: PLC0415 - as above

    toll = killed(count)
    wrong = len(toll.lost) + len(toll.broken) + len(toll.strange)
    note = f"{toll.kills} kills, {toll.torn} during a save, {toll.seconds:.0f} s"
    figures.add("kills that lost or broke a checkpoint", wrong, 0, note=note)
