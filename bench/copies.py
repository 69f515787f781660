"""What copies of checkpoints cost: CPU for each GB, how well the rate limit is held, and the steps of a training.

Section `power`: each of four hosts without a shared disk loses its power, and a blank spare takes its place.
"""

import json
import os
import re
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
from typing import TYPE_CHECKING, Any

import numpy as np

from aboard.core.plan.training_settings import Training
from aboard.sandbox import Host
from aboard.sandbox.host_setup.system_files import CREW_HOME
from figures import Figures, main as run_bench
from recovery_stage import Stage
from train import compute_interval

if TYPE_CHECKING:
    from train_crew import Crew

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
GB = 1e9
# A turn is the steps from one save to the next.
SAVE_STEPS, TURNS = 20, 121
# On each host's own disk.
OUT = f"{CREW_HOME}/copies"
NODES, POWER_STEPS, PATIENCE = 4, 60, 900.0


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
    """A training of two ranks with a disk each: every other checkpoint is copied, until the next one is saved.

    A turn with copying is compared with the mean of the turns before and after it.
    """
    from tiny import MAX_LENGTH, tiny_data, tiny_model  # noqa: PLC0415 - of the tests; torch, which --help needs not

    crew.run(1, tiny_model, folder / "model")
    turns = 21 if quick else TURNS
    training = Training(
        model=str(folder / "model"),
        data=(tiny_data(folder / "data"),),
        output_dir=f"{folder}/disk{{node}}",
        max_length=MAX_LENGTH,
        max_steps=(turns + 1) * SAVE_STEPS,
        num_train_epochs=10_000,
        logging_steps=1,
        save_steps=SAVE_STEPS,
        save_total_limit=1,
        sharding="full",
        bf16=False,
    )
    with copy_every_other(folder) as copied:
        times = crew.run(2, train_on_own_disk, training, nodes=2, patience=PATIENCE)[0]
    # The first turn, before the first save, is for warming up.
    seconds = np.diff(times[SAVE_STEPS - 1 :: SAVE_STEPS])
    with_copies, without = seconds[1::2], (seconds[:-1:2] + seconds[2::2]) / 2
    low, middle, high = compute_interval(with_copies / without)
    shown = f"{1e3 * np.median(with_copies) / SAVE_STEPS:.1f} and {1e3 * np.median(without) / SAVE_STEPS:.1f} ms"
    note = f"{shown}; {len(with_copies)} turns, {len(copied)} copied, 95 % within {low:.3f} to {high:.3f}"
    figures.add("a step with copies of checkpoints / without", middle, 1.1, unit="×", note=note)


@contextmanager
def copy_every_other(folder: Path) -> Iterator[list[str]]:
    """Copiers of both disks at their usual limit, which are told of every other checkpoint; yields what is copied."""
    from copiers import run_copiers  # noqa: PLC0415 - of the tests

    roots = [folder / "disk0", folder / "disk1"]
    for root in roots:
        root.mkdir()
    over, copied = Event(), list[str]()
    with run_copiers(*roots, rate=200e6) as copiers:

        def tell() -> None:
            last = ""
            while not over.wait(0.005):
                newest = max((path.parent.name for path in roots[0].glob("step-*/manifest.json")), default="")
                if newest > last and int(newest[5:]) // SAVE_STEPS % 2 == 0:
                    for each in copiers:
                        each.ask("saved")
                last = newest

        telling = Thread(target=tell)
        telling.start()
        try:
            yield copied
        finally:
            over.set()
            telling.join()
        copied += [each["saved"]["checkpoint"] for each in copiers[1].reports if "saved" in each]


def train_on_own_disk(training: Training) -> list[float]:
    """When each step ended, as node 0 knows it."""
    from train_cases import lines  # noqa: PLC0415 - torch, as above

    from engines_table import train_silently  # noqa: PLC0415 - as above

    node = os.environ.get("GROUP_RANK", "0")
    training = replace(training, output_dir=training.output_dir.format(node=node))
    train_silently(training)
    return [] if node != "0" else [float(line["time"]) for line in lines(training) if "loss" in line]


def measure_power(figures: Figures, *, quick: bool) -> None:
    """Full sharding on four hosts; the fifth is blank. Samples are compared with those of an undisturbed training."""
    expected: dict[str, Any] = {}
    right = 0
    victims = range(1, 2 if quick else NODES + 1)
    for victim in victims:
        with Stage("power", NODES + 1) as stage:
            stage.put_training()
            if not expected:
                expected = train_undisturbed(stage)
            why = lose_power(stage, victim, expected)
        right += not why
        print(f"    n{victim}: {why or 'resumed from the newest copied checkpoint, and 0 samples differ'}", flush=True)
    figures.add(f"of {len(victims)} hosts without power: not resumed, or other samples", len(victims) - right, 0)


def train_undisturbed(stage: Stage) -> dict[str, Any]:
    with stage.run(*build_command(stage, f"n[1-{NODES}]", f"{OUT}-undisturbed")) as run:
        assert run.wait_end(PATIENCE) == 0, run.said
    return read_marker(stage.box.nodes[0], f"{OUT}-undisturbed")


def build_command(stage: Stage, nodes: str, out: str, *words: str) -> tuple[str, ...]:
    settings = {"num_train_epochs": 200, "max_steps": POWER_STEPS, "save_steps": 4, "save_total_limit": 2}
    own = {"sharding": "full", "output_dir": out}
    return stage.train(nodes, "", *words, "--set", "recover.standby=false", **settings, **own)


def lose_power(stage: Stage, victim: int, expected: dict[str, Any]) -> str:
    """Cuts the power after a save; returns what is wrong, or ""."""
    nodes = stage.box.nodes
    partner = nodes[victim % NODES]
    with stage.run(*build_command(stage, f"n[1-{NODES + 1}]", OUT, "--restarts", "2", "--spares", "1")) as run:
        run.wait("a copied checkpoint", lambda: len(list_copied(partner)) > 1, PATIENCE)
        nodes[victim - 1].kill_power()
        newest = list_copied(partner)[-1]
        code = run.wait_end(PATIENCE)
        said = run.said
    if code:
        return f"exit code {code}: {said[-3000:]}"
    if f"resumed from {OUT}/{newest}" not in said:
        return f"not resumed from {newest}: {said[-3000:]}"
    if not re.search(rf"of {newest} sent to 1 node, .* of it by other nodes", said):
        return f"the parts of {newest} did not come from another node: {said[-3000:]}"
    # Rank 0's node also has the metrics, which the spare got from the node that had a copy of them.
    first = nodes[NODES if victim == 1 else 0]
    found, steps = read_marker(first, OUT), read_steps(first)
    if found["progress"] != expected["progress"] or steps != list(range(1, POWER_STEPS + 1)):
        return f"other samples or steps: {found['progress']}, {expected['progress']}, {steps}"
    return ""


def list_copied(host: Host) -> list[str]:
    """The checkpoints of which a host has its copies, the newest last."""
    script = f'grep -l \'"state": "copied"\' {OUT}/step-*/copies.json'
    return sorted(Path(path).parent.name for path in host.run(["sh", "-c", script]).stdout.split())


def read_marker(host: Host, out: str) -> dict[str, Any]:
    """The last checkpoint's marker."""
    path = f"{out}/step-{POWER_STEPS:06d}/manifest.json"
    marker: dict[str, Any] = json.loads(host.run(["cat", path]).stdout)
    return marker


def read_steps(host: Host) -> list[int]:
    """The steps in metrics.jsonl, each once."""
    lines = map(json.loads, host.run(["cat", f"{OUT}/metrics.jsonl"]).stdout.splitlines())
    return [line["step"] for line in lines if "loss" in line]


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the benches' common signature
    """What copies of checkpoints cost, whether their limit is held, and whether a lost host costs a sample."""
    measure_cpu(figures, quick=quick)
    measure_rate(figures, quick=quick)
    measure_step_time(figures, quick)
    if not quick:
        measure_power(figures, quick=quick)


def measure_step_time(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    from train_crew import Crew  # noqa: PLC0415 - of the tests

    crew = Crew()
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure_steps(figures, crew, Path(folder), quick=quick)
    finally:
        crew.close()


if __name__ == "__main__":
    run_bench(
        "copies",
        measure,
        {
            "cpu": lambda figures, quick: measure_cpu(figures, quick=quick),
            "rate": lambda figures, quick: measure_rate(figures, quick=quick),
            "steps": measure_step_time,
            "power": lambda figures, quick: measure_power(figures, quick=quick),
        },
    )
