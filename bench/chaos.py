"""Seeded failures under a real training and under simulated nodes; promises that have to hold after each seed.

    python bench/chaos.py [--quick] [--seeds N] [--simulated N] [--first N] [--json FILE]

Real hosts: three ranks and two spares train a tiny model for some hundred steps. Each seed draws one to three failures
(sometimes two at once) and the steps at which they come. Afterwards the run must have exited with 0, the files of its
last checkpoint must be those of an undisturbed run, byte by byte, the chained hash of all samples must be the same,
each step must be in metrics.jsonl once, no process may be left on a host, and the ledger of the record and that of
metrics.jsonl must be the wall time within 1 %.

Simulated nodes: the real conductor and policy over acted nodes (attempts in order, the whole world in each, none before
the last is gone, the ledger), and the data cursor (all samples used once, whatever is lost and repeated).

Every fourth seed has no shared disk: checkpoints are copied from node to node, and a disk can become full.

`--quick`: one seed on real hosts, 10 simulated ones.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from aboard.sandbox import Host
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkDown
from chaos_simulated import draw_trial, find_cursor_faults, run_trials
from figures import Figures
from recovery_actions import describe_decisions
from recovery_stage import FOLDER, Running, Stage, kill, measure_ledger

RANKS, SPARES = 3, 2
STEPS, SAVE_STEPS = 160, 10
PATIENCE = 600.0
CUT_SECONDS = 8.0
STOPPED_SECONDS = 8.0
PRIVATE = "/private"
# Seconds between two failures at once.
AT_ONCE = 0.1
# A host's disk is a file system of its own, with the host's name, in the namespace that holds all disks.
RESIZE = """
disk=$(awk -v name="$1" '$1 == name && $3 == "tmpfs" { print $2 }' /proc/mounts)
for _ in $(seq 100); do
    if mount -o "remount,size=${2:-$(df -B1 --output=used "$disk" | tail -n 1)}" "$disk"; then exit 0; fi
done
exit 1
"""


def kill_rank(stage: Stage, host: Host) -> None:
    kill(stage.find_rank(host))


def kill_agent(which: str, stage: Stage, host: Host) -> None:
    agent = stage.find_agent(host, which)
    kill(agent)
    if not agent:
        print(f"    no {which} on {host.name} to kill", flush=True)


def stop_rank(stage: Stage, host: Host) -> None:
    """As Ctrl-Z does; whoever stopped it continues it."""
    rank = stage.find_rank(host)
    kill(rank, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    kill(rank, signal.SIGCONT)


def remove_node(_stage: Stage, host: Host) -> None:
    host.kill_power()


def return_node(_stage: Stage, host: Host) -> None:
    host.kill_power()
    time.sleep(CUT_SECONDS)
    host.power_on()


def inject_for_a_while(fault: Fault, stage: Stage, host: Host) -> None:
    with inject_temporarily(stage.box, host, fault):
        time.sleep(CUT_SECONDS)


def fill_disk(stage: Stage, host: Host) -> None:
    """The fault disk-full puts a copy in the directory's place, which loses what a training writes meanwhile."""
    stage.box.switch(["sh", "-c", RESIZE, "sh", host.name]).check_returncode()
    time.sleep(CUT_SECONDS)
    stage.box.switch(["sh", "-c", RESIZE, "sh", host.name, "50%"]).check_returncode()


def corrupt_newest(stage: "ChaosStage", host: Host) -> None:
    """Flips a byte in the middle of a file of the newest checkpoint, on one of its disks, then kills a rank."""
    newest = list_checkpoints(stage.list_folders())[-1]
    file = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    with file.open("r+b") as content:
        content.seek(file.stat().st_size // 2)
        byte = content.read(1)
        content.seek(-1, 1)
        content.write(bytes([byte[0] ^ 0xFF]))
    kill_rank(stage, host)


FAILURES: dict[str, Callable[["ChaosStage", Host], None]] = {
    "kill rank": kill_rank,
    "kill supervisor": partial(kill_agent, "supervisor"),
    "kill guard": partial(kill_agent, "guard"),
    "kill bridge": partial(kill_agent, "bridge"),
    "stop rank": stop_rank,
    "remove node": remove_node,
    "return node": return_node,
    "cut link": partial(inject_for_a_while, LinkDown()),
    "cut incoming": partial(inject_for_a_while, FirewallDrop(way="in")),
    "cut outgoing": partial(inject_for_a_while, FirewallDrop(way="out")),
    "corrupt newest checkpoint": corrupt_newest,
}
FILL_DISK = "fill disk"
ON_PRIVATE_DISKS: dict[str, Callable[["ChaosStage", Host], None]] = {
    **FAILURES,
    FILL_DISK: fill_disk,
}


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A failure of the host at this place among those with ranks, once the run has reached the step."""

    step: int
    name: str
    place: int


def is_on_private_disks(seed: int) -> bool:
    return seed % 4 == 3


def draw_injections(seed: int) -> list[Injection]:
    draw = random.Random(seed)  # noqa: S311 - no secrets
    failures = list(ON_PRIVATE_DISKS if is_on_private_disks(seed) else FAILURES)
    steps = sorted(draw.randint(SAVE_STEPS + 5, STEPS - 60) for _ in range(draw.randint(1, 3)))
    if len(steps) > 1 and draw.random() < 0.3:
        steps[1] = steps[0]
    found = [Injection(step=step, name=draw.choice(failures), place=draw.randrange(RANKS)) for step in steps]
    return [replace(found[0], name=FILL_DISK), *found[1:]] if seed % 8 == 3 else found


class ChaosStage(Stage):
    """Three nodes with ranks, two spares, and an output directory per run, on the shared disk or on private ones."""

    def __init__(self) -> None:
        super().__init__("chaos", RANKS + SPARES)
        self._out = ""
        self.put_training()

    def list_folders(self) -> list[Path]:
        """The output directory on each disk that has it."""
        hosts = [host for host in self.box.nodes if host.on] if self._out.startswith(PRIVATE) else [self.box.head]
        folders = [Path(f"/proc/{host.pid}/root{self._out}") for host in hosts]
        return [folder for folder in folders if folder.exists()]

    def read_metrics(self) -> list[dict[str, Any]]:
        """Those of the disk that is furthest."""
        files = [folder / "metrics.jsonl" for folder in self.list_folders()]
        texts = [file.read_text().rpartition("\n")[0] for file in files if file.exists()]
        found = [[json.loads(line) for line in text.splitlines()] for text in texts]
        return max(found, key=lambda lines: lines[-1]["step"] if lines else 0, default=[])

    def run_training(self, out: str, injections: list[Injection]) -> int:
        """Trains under these failures; returns the exit code."""
        self._out = out
        words = ("--restarts", "10", "--spares", str(SPARES))
        settings: dict[str, object] = {"max_steps": STEPS, "save_steps": SAVE_STEPS, "output_dir": out}
        if out.startswith(PRIVATE):
            # Otherwise each disk has all of it.
            settings["sharding"] = "full"
        train = self.train(f"n[1-{RANKS + SPARES}]", "", *words, **settings)
        with self.run(*train) as run:
            for injection in injections:
                self._await_step(run, injection.step)
                hosts = [host for host in self.box.nodes if host.on and self.find_rank(host)]
                if hosts:
                    ON_PRIVATE_DISKS[injection.name](self, hosts[injection.place % len(hosts)])
                time.sleep(AT_ONCE)
            code = run.wait_end(PATIENCE)
            if code:
                print(run.said[-3000:], flush=True)
        return code

    def _await_step(self, run: Running, step: int) -> None:
        """Until the run is at the step, in whichever attempt."""

        def is_there() -> bool:
            steps = re.findall(r"\] step (\d+)/", run.said)
            return bool(steps) and int(steps[-1]) >= step

        run.wait(f"step {step}", is_there, PATIENCE)


def list_checkpoints(folders: list[Path]) -> list[Path]:
    """The complete ones, the newest last."""
    return sorted((m.parent for folder in folders for m in folder.glob("step-*/manifest.json")), key=lambda p: p.name)


def read_result(stage: ChaosStage) -> tuple[dict[str, str], Any]:
    """The hashes of the last checkpoint's files, and the cursor with the chained hash of all samples."""
    marker = json.loads((list_checkpoints(stage.list_folders())[-1] / "manifest.json").read_text())
    return {file["name"]: file["sha256"] for file in marker["files"]}, marker["progress"]


def find_broken(stage: ChaosStage, code: int, reference: tuple[dict[str, str], Any]) -> list[str]:
    if code:
        return [f"exit code {code}"]
    weights, progress = read_result(stage)
    lines = stage.read_metrics()
    steps = [line["step"] for line in lines if "loss" in line]
    spent, wall = measure_ledger(stage.find_run())
    own, own_wall = lines[-1]["seconds"], lines[-1]["wall"]
    promises = {
        "the weights differ": weights == reference[0],
        "other samples": progress == reference[1],
        "a step is missing or twice": steps == list(range(1, STEPS + 1)),
        f"orphans {stage.list_orphans()}": not stage.list_orphans(),
        f"the ledger has {sum(spent.values()):.2f} s of {wall:.2f} s": abs(sum(spent.values()) - wall) <= 0.01 * wall,
        f"rank 0's ledger has {sum(own.values()):.2f} s of {own_wall:.2f} s, the run {wall:.2f} s": abs(
            sum(own.values()) - own_wall
        )
        <= 0.01 * own_wall
        and own_wall <= wall * 1.01,
    }
    return [promise for promise, holds in promises.items() if not holds]


def measure_real(figures: Figures, seeds: range) -> None:
    with ChaosStage() as stage:
        references: dict[bool, tuple[dict[str, str], Any]] = {}
        broken: dict[int, list[str]] = {}
        for seed in seeds:
            is_private, injections = is_on_private_disks(seed), draw_injections(seed)
            folder = PRIVATE if is_private else FOLDER
            if is_private not in references:
                if code := stage.run_training(f"{folder}/undisturbed", []):
                    raise SystemExit(f"the undisturbed run failed with exit code {code}")
                references[is_private] = read_result(stage)
            try:
                code = stage.run_training(f"{folder}/seed-{seed}", injections)
                found = find_broken(stage, code, references[is_private])
            except TimeoutError as error:
                stage.stop()
                found = [f"not within its time: {error}"]
            shown = ", ".join(f"{each.name} at step {each.step}" for each in injections)
            print(f"    seed {seed}: {shown}: {found or 'ok'} ({describe_decisions(stage)})", flush=True)
            broken |= {seed: found} if found else {}
            for host in stage.box.nodes:
                host.power_on()
    note = ", ".join(f"{seed}: {'; '.join(found)[:120]}" for seed, found in broken.items())
    figures.add(f"seeds of {len(seeds)} on real hosts with a broken promise", len(broken), 0, note=note)


def measure_simulated(figures: Figures, seeds: range) -> None:
    trials = [draw_trial(seed) for seed in seeds]
    asyncio.run(run_trials(trials))
    broken = [trial.seed for trial in trials if trial.broken]
    figures.add(f"seeds of {len(seeds)} on simulated nodes with a broken promise", len(broken), 0, note=str(broken))
    cursor = [seed for seed in seeds if find_cursor_faults(seed)]
    figures.add(f"seeds of {len(seeds)} in which a sample is lost or used twice", len(cursor), 0, note=str(cursor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed on real hosts, 10 simulated ones")
    parser.add_argument("--seeds", type=int, help="how many on real hosts (20)")
    parser.add_argument("--simulated", type=int, help="how many on simulated nodes (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed, to repeat a single one")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    figures = Figures("chaos")
    real = options.seeds if options.seeds is not None else 1 if options.quick else 20
    simulated = options.simulated if options.simulated is not None else 10 if options.quick else 200
    if simulated:
        measure_simulated(figures, range(options.first, options.first + simulated))
    if real:
        measure_real(figures, range(options.first, options.first + real))
    sys.exit(figures.finish(options.json))


if __name__ == "__main__":
    main()
