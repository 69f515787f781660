"""LoRA, precisions, optimizers and trackers: equal curves on all layouts, speed, memory estimates and log lines."""

import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import engines_table
import trackers
from aboard.core.plan.training_settings import Adapter, Training
from figures import Figures, main
from train import DUELS, LARGE, QUICK_TURNS, SMALL, STEPS, TURNS, compute_interval
from train_runs import prepare_task, run_interleaved, start_contest

if TYPE_CHECKING:
    from train_crew import Crew

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

ADAPTERS = {"LoRA": Adapter(), "LoRA with dropout": Adapter(dropout=0.1)}


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures curves of all settings on 1 to 4 ranks, LoRA's speed, memory and checkpoints, and trackers."""
    for section in SECTIONS.values():
        section(figures, quick)


def measure_table(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Losses, gradient norms and samples of all settings and layouts, beside those of one rank."""
    from train_crew import Crew  # noqa: PLC0415 - torch, which --help need not wait for

    crew = Crew()
    try:
        with tempfile.TemporaryDirectory() as folder:
            engines_table.measure_table(figures, crew, Path(folder), quick=quick)
    finally:
        crew.close()


def measure_speed(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Step time of LoRA in alternating turns with a bare PEFT loop on the same engine, and with the HF Trainer."""
    with tempfile.TemporaryDirectory() as made:
        task = prepare_task(Path(made), SMALL if quick else LARGE)
        for name, adapter in list(ADAPTERS.items())[: 1 if quick else None]:
            adapted = replace(task, training=replace(task.training, adapter=adapter))
            for layout in ("none",) if quick else ("none", "full"):
                others = ["bare"] if quick else ["bare", "HF Trainer"]
                with start_contest(["ours", *others], adapted, world=2, layout=layout) as running:
                    took = run_interleaved(running, turns=QUICK_TURNS if quick else TURNS, steps=STEPS)
                    pair = {each: running[each] for each in ("ours", "bare")}
                    duel = took if quick else run_interleaved(pair, turns=DUELS, steps=STEPS)
                for other in [each for each in took if each != "ours"]:
                    times = duel if other == "bare" else took
                    ours, theirs = np.array(times["ours"]), np.array(times[other])
                    low, middle, high = compute_interval(ours / theirs)
                    rates = [f"{2 * task.tokens / median(each):.0f}" for each in (ours, theirs)]
                    note = f"{' and '.join(rates)} tokens/s; 95 % within {low:.3f} to {high:.3f}"
                    # As in bench/train.py: --quick can't resolve 2 %, and others need only not be faster.
                    exact = other == "bare" and not quick
                    figures.add(
                        f"{name}, {layout}, 2 ranks: step time / {other}'s",
                        middle if exact else low,
                        1 / 0.98 if other == "bare" else 1.0,
                        unit="×",
                        note=note,
                    )


def measure_memory(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Peak of live tensors of a 55M model against its estimate; with --quick only of LoRA on one rank."""
    from model_cases import made, peak_told_and_measured  # noqa: PLC0415 - torch, which --help need not wait for
    from train_crew import Crew  # noqa: PLC0415 - as above

    shape = {
        "vocab_size": LARGE.vocabulary,
        "hidden_size": LARGE.hidden,
        "intermediate_size": LARGE.hidden * 11 // 4,
        "num_hidden_layers": LARGE.layers,
        "num_attention_heads": LARGE.hidden // 64,
        "max_position_embeddings": LARGE.length,
        "tie_word_embeddings": False,
    }
    lora: dict[str, Any] = {"adapter": Adapter()}
    chunked: dict[str, Any] = {"chunked_loss": True}
    cases = {"LoRA": lora, "all weights": {}, "chunked loss": chunked, "LoRA, chunked loss": {**lora, **chunked}}
    layouts = [("none", (1,))] if quick else [("none", (1,)), ("none", (2,)), ("full", (2,)), ("hybrid", (2, 2))]
    crew = Crew()
    try:
        with tempfile.TemporaryDirectory() as folder:
            crew.run(1, partial(made, Path(folder), "llama", **shape))
            for name, settings in list(cases.items())[: 1 if quick else None]:
                for layout, nodes in layouts:
                    given = {"max_length": LARGE.length, "gradient_accumulation_steps": 1, **settings}
                    case = partial(peak_told_and_measured, Path(folder), nodes, layout, **given)
                    told = crew.run(sum(nodes), case, nodes=len(nodes))[0]
                    note = f"{told.told / 2**20:.0f} MiB estimated, {told.measured / 2**20:.0f} MiB measured"
                    figures.add(
                        f"{name}, {layout}, {sum(nodes)} ranks: error of the estimated peak",
                        abs(told.told / told.measured - 1),
                        0.1,
                        note=note,
                    )
            if not quick:
                _measure_checkpoints(figures, crew, Path(folder))
            [offloaded] = crew.run(1, estimate_offload, Path(folder))
    finally:
        crew.close()
    print(f"cpu_offload, on 2 ranks: estimate {offloaded}", flush=True)


def _measure_checkpoints(figures: Figures, crew: "Crew", model: Path) -> None:
    """The size of a checkpoint of LoRA beside that of all weights."""
    import save_cases  # noqa: PLC0415 - torch, as above

    from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint  # noqa: PLC0415 - as above

    sizes = {}
    for name, adapter in (("LoRA", Adapter()), ("all weights", None)):
        with tempfile.TemporaryDirectory() as folder:
            training = Training(model=str(model), data=(), output_dir=folder, max_length=8, adapter=adapter, bf16=False)
            crew.run(1, save_cases.save, training, 1)
            saved = SavedCheckpoint.open(Path(folder, "step-000001"))
            sizes[name] = sum(file.bytes for file in saved.marker.files)
    lora, full = sizes.values()
    note = f"{lora / 1e6:.0f} and {full / 1e6:.0f} MB"
    figures.add("checkpoint of LoRA / of all weights", lora / full, 0.1, unit="×", note=note)


def estimate_offload(model: Path) -> str:
    """What a rank of two needs with its states on the host."""
    from aboard.trainer.memory.estimate import estimate_memory, profile_model  # noqa: PLC0415 - torch, as above

    training = Training(model=str(model), data=(), output_dir="", max_length=LARGE.length, bf16=False, cpu_offload=True)
    told = estimate_memory(profile_model(training), training, (2,), sharding="full", keep=False, hold=False)
    return told.details((2,))


def measure_trackers(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """The time of a log line with each tracker, and of a step while a tracking server hangs."""
    from train_crew import Crew  # noqa: PLC0415 - as above

    trackers.measure_log_lines(figures, quick=quick)
    if quick:
        return
    crew = Crew()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trackers.measure_steps(figures, crew, Path(folder))
    finally:
        crew.close()


SECTIONS = {"table": measure_table, "speed": measure_speed, "memory": measure_memory, "trackers": measure_trackers}

if __name__ == "__main__":
    main("engines", measure, SECTIONS)
