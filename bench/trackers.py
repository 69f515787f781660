"""What a log line costs the training with and without trackers: `python bench/trackers.py`."""

import os
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from aboard.core.plan.training_settings import Tracker, Training
from aboard.train.metrics_report import MetricsReporter

LINE = {"loss": 2.0, "learning_rate": 1e-5, "grad_norm": 1.0, "tokens_per_second": 1e4, "mfu": None, "eta": 1.0}


def measure_log_call(*trackers: Tracker, lines: int = 200, pause: float = 0.01) -> float:
    """The median seconds that rank 0 spends in one log line, while the senders run."""
    # No server is needed: the training's thread does the same whether one answers or not.
    os.environ |= {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    seconds = []
    with TemporaryDirectory() as folder, Path(os.devnull).open("w") as null, redirect_stdout(null):
        training = Training(model="m", data=(), output_dir=folder, max_length=8, report_to=trackers)
        with MetricsReporter(training, main=True) as report:
            report.begin(0)
            for step in range(1, lines + 1):
                began = perf_counter()
                report.line({"step": step, "steps": lines, **LINE})
                seconds.append(perf_counter() - began)
                sleep(pause)
    return median(seconds)


if __name__ == "__main__":
    sets: tuple[tuple[Tracker, ...], ...] = ((), ("tensorboard",), ("wandb",), ("mlflow",))
    for names in sets:
        print(f"{', '.join(names) or 'none':12} {1e6 * measure_log_call(*names):8.0f} µs")
