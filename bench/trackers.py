"""What trackers cost the training's thread: the time of a log line, and of a step while a tracking server hangs."""

import os
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np

from aboard.core.plan.training_settings import Tracker, Training
from aboard.trainer.metrics.metrics_report import MetricsReporter
from aboard.trainer.trackers import sender_process
from figures import Figures
from train import compute_interval

if TYPE_CHECKING:
    from train_crew import Crew

LINE = {"loss": 2.0, "learning_rate": 1e-5, "grad_norm": 1.0, "tokens_per_second": 1e4, "mfu": None, "eta": 1.0}
SETS: dict[str, tuple[Tracker, ...]] = {
    "tensorboard": ("tensorboard",),
    "wandb, offline": ("wandb",),
    "mlflow, no answer": ("mlflow",),
}
STEPS, WARM_UP = 300, 150
TURNS = 7


def measure_log_lines(figures: Figures, *, quick: bool) -> None:
    """Trackers in turns with none; the server of MLflow accepts connections and never answers."""
    from mlflow_server import hang_silently  # noqa: PLC0415 - of the tests

    with hang_silently() as listener:
        server = f"http://127.0.0.1:{listener.getsockname()[1]}"
        seconds: dict[str, list[float]] = {}
        names = list(SETS)[-1:] if quick else list(SETS)
        for _ in range(1 if quick else 3):
            for name in ("none", *names):
                trackers = SETS.get(name, ())
                seconds.setdefault(name, []).append(measure_log_call(*trackers, server=server))
    none = median(seconds.pop("none"))
    for name, took in seconds.items():
        note = f"{1e6 * median(took):.0f} and {1e6 * none:.0f} µs"
        figures.add(f"a log line with {name} / with no tracker", median(took) / none, 1.5, unit="×", note=note)


def measure_log_call(*trackers: Tracker, server: str, lines: int = 200, pause: float = 0.005) -> float:
    """The median seconds that rank 0 spends in one log line, while the senders run."""
    os.environ |= {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": server}
    seconds = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as null,
        redirect_stdout(null),
        patch.multiple(sender_process, FLUSH_SECONDS=0.0, START_SECONDS=0.0),
    ):
        training = Training(model="m", data=(), output_dir=folder, max_length=8, report_to=trackers)
        with MetricsReporter(training, main=True) as report:
            report.begin(0)
            senders = report._senders  # noqa: SLF001 - only the bench waits for them
            if senders is not None:
                # A sender that still imports its library has nothing to send yet.
                for sender in senders._senders.values():  # noqa: SLF001 - as above
                    sender.wait_until_ready(60.0)
            for step in range(1, lines + 1):
                began = perf_counter()
                report.line({"step": step, "steps": lines, **LINE})
                seconds.append(perf_counter() - began)
                sleep(pause)
    return median(seconds)


def measure_steps(figures: Figures, crew: "Crew", folder: Path) -> None:
    """Steps of a tiny training that logs each one to a server that hangs, in turns with none."""
    from mlflow_server import hang_silently  # noqa: PLC0415 - of the tests
    from tiny import MAX_LENGTH, tiny_data, tiny_model  # noqa: PLC0415 - torch, which --help need not wait for

    crew.run(1, tiny_model, folder / "model")
    data = tiny_data(folder / "data")
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with hang_silently() as listener:
        server = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for turn in range(TURNS):
            for hangs in seconds:
                training = Training(
                    model=str(folder / "model"),
                    data=(data,),
                    output_dir=str(folder / f"turn-{turn}-{hangs}"),
                    max_length=MAX_LENGTH,
                    max_steps=STEPS,
                    logging_steps=1,
                    bf16=False,
                    report_to=("mlflow",) if hangs else (),
                )
                seconds[hangs] += crew.run(1, train_and_time, training, server)
    with_server, without = np.array(seconds[True]), np.array(seconds[False])
    low, middle, high = compute_interval(with_server / without)
    times = f"{1e3 * median(with_server):.1f} and {1e3 * median(without):.1f} ms"
    note = f"{times}; median of {TURNS} turns, 95 % within {low:.3f} to {high:.3f}"
    figures.add("a step with an MLflow server that hangs / with none", middle, 1.1, unit="×", note=note)


def train_and_time(training: Training, server: str) -> float:
    """The mean seconds of a step after the first ones, in which the sender imports its library."""
    from train_cases import lines  # noqa: PLC0415 - as above

    from engines_table import train_silently  # noqa: PLC0415 - torch, as above

    os.environ["MLFLOW_TRACKING_URI"] = server
    with patch.multiple(sender_process, FLUSH_SECONDS=0.0, START_SECONDS=0.0):
        train_silently(training)
    times = [line["time"] for line in lines(training) if "loss" in line]
    return float(times[-1] - times[WARM_UP]) / (len(times) - 1 - WARM_UP)
