"""What copies of checkpoints cost: CPU for each GB, how well the rate limit is held, and the steps of a training."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING

import numpy as np

from aboard.core.plan.training_settings import Training
from figures import Figures
from figures import main as run_bench
from train import compute_interval

if TYPE_CHECKING:
    from train_crew import Crew

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
GB = 1e9
STEPS, WARM_UP, SAVE_STEPS = 120, 20, 20
TURNS = 7


def measure_cpu(figures: Figures, *, quick: bool) -> None:
    """Both ends of a copy together, over loopback, in turns with `cp` and `sha256sum` of the same file."""
    size = (128 if quick else 1024) << 20
    ours, theirs = [], []
    for _ in range(2 if quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            ours.append(count_cpu(lambda folder=folder: copy_once(Path(folder), size, 0)))  # type: ignore[misc]
            part = Path(folder, "a/step-000002/rank-00000-000.safetensors")
            theirs.append(count_cpu(lambda part=part: copy_and_hash(part)))  # type: ignore[misc]
    note = f"{median(ours) / size * GB:.2f} and {median(theirs) / size * GB:.2f} s for each GB"
    ratios = median(np.array(ours) / np.array(theirs))
    figures.add("CPU of a copy / of cp and sha256sum", ratios, 1.5, unit="×", note=note)


def measure_rate(figures: Figures, *, quick: bool) -> None:
    """A limit of 50 MB/s."""
    rate, seconds = 50e6, 4 if quick else 20
    with tempfile.TemporaryDirectory() as folder:
        took = copy_once(Path(folder), int(rate * seconds), rate)
    note = f"{rate * seconds / took / 1e6:.1f} MB/s"
    figures.add("copying at a limit of 50 MB/s: distance from it", abs(seconds / took - 1), 0.1, note=note)


def copy_once(folder: Path, size: int, rate: float) -> float:
    """The seconds from the first bytes until the second of two copiers has the first one's file."""
    from copiers import run_copiers, save_parts  # noqa: PLC0415 - of the tests

    roots = [folder / "a", folder / "b"]
    save_parts(roots, 2, [size, 0])
    with run_copiers(*roots, rate=rate) as (_first, second):
        while not any(each.stat().st_size for each in (folder / "b").glob("step-*/.aboard-*.part")):
            sleep(0.005)
        began = monotonic()
        assert second.ask("status", seconds=3600)["pending"] == []
        return monotonic() - began


def copy_and_hash(part: Path) -> None:
    target = part.with_name("copy")
    subprocess.run(["cp", part, target], check=True)
    subprocess.run(["sha256sum", target], check=True, stdout=subprocess.DEVNULL)


def count_cpu(act: Callable[[], object]) -> float:
    """The CPU seconds of the processes that `act` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure_steps(figures: Figures, crew: "Crew", folder: Path, *, quick: bool) -> None:
    """A training of two ranks with a disk each, which saves often: with copiers at their usual limit, and without."""
    from tiny import MAX_LENGTH, tiny_data, tiny_model  # noqa: PLC0415 - of the tests; torch, which --help needs not

    crew.run(1, tiny_model, folder / "model")
    data = tiny_data(folder / "data")
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 if quick else TURNS):
        for copies in seconds:
            out = folder / f"turn-{turn}-{copies}"
            training = Training(
                model=str(folder / "model"),
                data=(data,),
                output_dir=f"{out}/disk{{node}}",
                max_length=MAX_LENGTH,
                max_steps=STEPS,
                logging_steps=1,
                save_steps=SAVE_STEPS,
                sharding="full",
                bf16=False,
                checkpoint_copies=int(copies),
            )
            with copy_continuously(out, active=copies):
                seconds[copies] += crew.run(2, train_on_own_disk, training, nodes=2)[:1]
    low, middle, high = compute_interval(np.array(seconds[True]) / np.array(seconds[False]))
    times = f"{1e3 * median(seconds[True]):.1f} and {1e3 * median(seconds[False]):.1f} ms"
    note = f"{times}; median of {len(seconds[True])} turns, 95 % within {low:.3f} to {high:.3f}"
    figures.add("a step with copies of checkpoints / without", middle, 1.1, unit="×", note=note)


@contextmanager
def copy_continuously(out: Path, *, active: bool) -> Iterator[None]:
    """Copiers of both disks, which are told of checkpoints ten times a second, unlike by a supervisor."""
    from copiers import run_copiers  # noqa: PLC0415 - of the tests

    roots = [out / "disk0", out / "disk1"]
    for root in roots:
        root.mkdir(parents=True)
    if not active:
        yield
        return
    over = Event()
    with run_copiers(*roots, rate=200e6) as copiers:

        def tell() -> None:
            while not over.wait(0.1):
                for each in copiers:
                    each.send("saved")

        telling = Thread(target=tell)
        telling.start()
        try:
            yield
        finally:
            over.set()
            telling.join()
        for each in copiers:
            assert each.ask("status", seconds=600)["pending"] == []


def train_on_own_disk(training: Training) -> float:
    """The mean seconds of a step after the first ones, with its share of what saves cost."""
    from train_cases import lines  # noqa: PLC0415 - torch, as above

    from engines_table import train_silently  # noqa: PLC0415 - as above

    node = os.environ.get("GROUP_RANK", "0")
    training = replace(training, output_dir=training.output_dir.format(node=node))
    train_silently(training)
    if node != "0":
        return 0.0
    times = [line["time"] for line in lines(training) if "loss" in line]
    return float(times[-1] - times[WARM_UP]) / (len(times) - 1 - WARM_UP)


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the benches' common signature
    """What copies of checkpoints cost, and whether their limit is held."""
    from train_crew import Crew  # noqa: PLC0415 - of the tests

    measure_cpu(figures, quick=quick)
    measure_rate(figures, quick=quick)
    crew = Crew()
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure_steps(figures, crew, Path(folder), quick=quick)
    finally:
        crew.close()


if __name__ == "__main__":
    run_bench("copies", measure)
