"""Every training setting on one to four ranks: losses, gradient norms and samples beside those of one rank."""

import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aboard.core.plan.training_settings import Adapter, Sharding, Training
from figures import Figures

if TYPE_CHECKING:
    from train_crew import Crew

STEPS, SAVED = 12, 6
EXACT, HALF = 1e-5, 1e-3


class Layout(NamedTuple):
    world: int
    sharding: Sharding
    nodes: int = 1

    def __str__(self) -> str:
        return "1 rank" if self.world == 1 else f"{self.world}×{self.sharding}"


ONE, TWO, FULL = Layout(1, "none"), Layout(2, "none"), Layout(2, "full")
HYBRID, FULL4 = Layout(4, "hybrid", nodes=2), Layout(4, "full")
LAYOUTS = (TWO, FULL, HYBRID, FULL4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Settings, how close losses and norms must be to one rank's, and the layouts they are run on.

    A row that is `unchanged` is compared with one rank that trains all weights without these settings.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    bar: float = EXACT
    layouts: Sequence[Layout] = LAYOUTS
    packings: Sequence[str] = ("packed", "padded")
    resumed: Layout = HYBRID
    unchanged: bool = False


class Curve(NamedTuple):
    """Loss and gradient norm by step, and the progress that checkpoints have."""

    steps: dict[int, tuple[float, float]]
    progress: dict[int, Mapping[str, Any]]


_SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {},
    "linear": {},
    "constant": {},
    "wsd": {"decay_ratio": 0.5},
    "polynomial": {"power": 2.0},
    "inverse_sqrt": {},
    "cosine_with_restarts": {"num_cycles": 2},
}
ROWS = {
    "all weights": Row(),
    "LoRA": Row(settings={"adapter": Adapter()}),
    "LoRA, dropout 0.1": Row(settings={"adapter": Adapter(dropout=0.1)}),
    "DoRA": Row(settings={"adapter": Adapter(use_dora=True)}),
    "fp16": Row(settings={"fp16": True}, bar=HALF),
    # One rank and DDP use autocast, which keeps norms and sums in float32; FSDP computes all of it in bf16.
    "bf16": Row(settings={"bf16": True}, bar=HALF),
    "LoRA in bf16": Row(settings={"adapter": Adapter(), "bf16": True}, bar=HALF),
    # Only shards can be offloaded: one rank counts as sharded.
    "cpu_offload": Row(
        settings={"cpu_offload": True}, unchanged=True, layouts=(Layout(1, "full"), FULL, HYBRID, FULL4)
    ),
    "chunked_loss": Row(settings={"chunked_loss": True}, unchanged=True, layouts=(ONE, *LAYOUTS)),
    "selective checkpointing": Row(
        settings={"gradient_checkpointing": "selective"}, unchanged=True, layouts=(ONE, *LAYOUTS)
    ),
    "adafactor": Row(settings={"optim": "adafactor"}),
    "muon": Row(settings={"optim": "muon"}, bar=HALF),
    "adamw_8bit": Row(settings={"optim": "adamw_8bit"}),
    **{
        # What differs is a function of the step: a layout and a resume show it.
        name: Row(
            settings={"lr_scheduler_type": name, "warmup_steps": 2, **more},
            layouts=(FULL,),
            packings=("packed",),
            resumed=ONE,
        )
        for name, more in _SCHEDULES.items()
    },
}
_QUICK = {
    name: Row(settings=ROWS[name].settings, bar=ROWS[name].bar, layouts=(FULL,), packings=("packed",), resumed=ONE)
    for name in ("LoRA, dropout 0.1", "fp16", "adafactor")
}


def measure_table(figures: Figures, crew: "Crew", folder: Path, *, quick: bool) -> None:
    """Three figures for each row, one of all, and at the end a table of the worst difference on each layout."""
    from tiny import tiny_model  # noqa: PLC0415 - torch, which --help need not wait for

    crew.run(1, tiny_model, folder / "model", "qwen2")
    runs = _Runs(crew, folder)
    table: dict[str, dict[str, float]] = {}
    for name, row in (_QUICK if quick else ROWS).items():
        try:
            table[name] = _measure_row(figures, name, row, runs)
        except AssertionError as error:
            # A rank failed; the other rows can still be measured.
            figures.add(f"{name}: losses", inf, row.bar, note=str(error).strip().splitlines()[-1])
    # A setting that is ignored is equal on all layouts too, but its curve is that of another row.
    curves = list(runs.references.values())
    alike = [name for place, name in enumerate(runs.references) if curves[place] in curves[:place]]
    note = f"of {len(curves)} rows; {', '.join(alike) or 'none'}"
    figures.add("settings whose curve is that of another row", len(alike), 0, note=note)
    _print_table(table)


class _Runs:
    """Runs trainings in directories of their own."""

    def __init__(self, crew: "Crew", folder: Path) -> None:
        self._crew = crew
        self._folder = folder
        self._count = 0
        # By row, the curve of one rank.
        self.references: dict[str, dict[int, tuple[float, float]]] = {}

    def run(self, layout: Layout, settings: Mapping[str, Any], packing: str, resume: str = "none") -> tuple[Curve, str]:
        """The curve and the output directory."""
        from tiny import MAX_LENGTH, tiny_data  # noqa: PLC0415 - as above

        self._count += 1
        usual: dict[str, Any] = {
            "model": str(self._folder / "model"),
            "data": (tiny_data(self._folder / packing, packing),),  # type: ignore[arg-type]
            "output_dir": str(self._folder / f"run-{self._count}"),
            "max_length": MAX_LENGTH,
            "max_steps": STEPS,
            "save_steps": SAVED,
            "global_batch_size": 4,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "logging_steps": 1,
            "bf16": False,
            "resume": resume,
        }
        training = Training(**{**usual, **settings, "sharding": layout.sharding})
        self._crew.run(layout.world, train_silently, training, nodes=layout.nodes)
        return _read_curve(training), training.output_dir


def train_silently(training: Training) -> None:
    from train_cases import trained, trained_in_chunks  # noqa: PLC0415 - as above

    with Path(os.devnull).open("w") as null, redirect_stdout(null):
        (trained_in_chunks if training.chunked_loss else trained)(training)


def _read_curve(training: Training) -> Curve:
    from train_cases import lines  # noqa: PLC0415 - as above

    from aboard.trainer.checkpoint.commit_marker import parse_marker  # noqa: PLC0415 - as above

    steps = {line["step"]: (line["loss"], line["grad_norm"]) for line in lines(training) if "loss" in line}
    markers = [parse_marker(path.read_bytes()) for path in Path(training.output_dir).glob("step-*/manifest.json")]
    return Curve(steps, {marker.progress["step"]: marker.progress for marker in markers})


def _measure_row(figures: Figures, name: str, row: Row, runs: _Runs) -> dict[str, float]:
    """The worst difference of each column."""
    found: dict[str, tuple[float, float]] = {}
    mismatches = 0
    for packing in row.packings:
        expected, _ = runs.run(ONE, {} if row.unchanged else row.settings, packing)
        if not row.unchanged:
            runs.references.setdefault(name, expected.steps)
        curves: dict[str, tuple[Curve, range]] = {}
        for layout in row.layouts:
            curve, output_dir = runs.run(layout, row.settings, packing)
            curves[f"{layout}, {packing}"] = curve, range(1, STEPS + 1)
            if layout == FULL:
                saved = f"{output_dir}/step-{SAVED:06}"
                again, _ = runs.run(row.resumed, row.settings, packing, resume=saved)
                curves[f"resumed, {packing}"] = again, range(SAVED + 1, STEPS + 1)
        for column, (curve, steps) in curves.items():
            found[column] = compare_curves(curve, expected, steps)
            # The hash of all samples so far, their tokens, and where the next ones start.
            saves = [step for step in (SAVED, STEPS) if step in steps]
            mismatches += sum(curve.progress.get(step) != expected.progress[step] for step in saves)
    for place, what in enumerate(("losses", "gradient norms")):
        worst = max(found, key=lambda column: found[column][place])
        note = f"worst of {len(found)} on {worst}"
        figures.add(f"{name}: relative difference of {what}", found[worst][place], row.bar, note=note)
    note = f"all layouts; step {SAVED} of 2×full resumed on {row.resumed}"
    figures.add(f"{name}: checkpoints with other samples", mismatches, 0, note=note)
    return {column: max(pair) for column, pair in found.items()}


def compare_curves(curve: Curve, expected: Curve, steps: range) -> tuple[float, float]:
    """The worst relative difference of losses and of norms; infinite if a step is missing."""
    if list(curve.steps) != list(steps):
        return inf, inf
    loss, norm = (
        max(_compare(curve.steps[step][place], expected.steps[step][place]) for step in steps) for place in (0, 1)
    )
    return loss, norm


def _compare(one: float | None, other: float | None) -> float:
    """Steps that fp16 skips have no loss or norm, on one rank as on others."""
    if one is None or other is None:
        return 0.0 if one is other else inf
    return abs(one - other) / abs(other)


def _print_table(table: Mapping[str, Mapping[str, float]]) -> None:
    layouts = list(dict.fromkeys(column.partition(",")[0] for row in table.values() for column in row))
    print(f"\n{'worst of losses and norms':<26}" + "".join(f"{layout:>10}" for layout in layouts))
    for name, row in table.items():
        worst = [[each for column, each in row.items() if column.startswith(f"{layout},")] for layout in layouts]
        print(f"{name:<26}" + "".join(f"{max(each):>10.1e}" if each else f"{'–':>10}" for each in worst))
    print(flush=True)
