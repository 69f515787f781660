"""What recovery costs, and whether it does what its table says.

    python bench/recovery.py [--quick] [--only SECTION] [--minutes N] [--done FILE] [--json FILE]

Sections: `bugs` (20 deterministic bugs of programs: restarts), `actions` (60 injected faults on 8 hosts and 2 spares,
20 of them in `aboard train`: the action by the table, and never a smaller world; with `--done`, a bench that was cut
off continues), `rank` (a killed rank: time to the next step against a cold start, with standbys and without, beside
torchrun and ft_launcher on the same hosts), `spare` (a lost node: time to the next step on the spare), `goodput` (half
an hour with 12 killed ranks, 2 cuts and a lost node). `--quick`: a few bugs and actions.

ft_launcher is that of nvidia-resiliency-ext 0.4.1, an old version: PyPI has no newer one. torchft has no counterpart to
a whole restart: a group of ranks that died is restarted by its own torchrun while the others go on, on fewer ranks.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aboard.sandbox import Host
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.links import LinkDown
from figures import Figures
from recovery_actions import describe_decisions, measure_actions
from recovery_peers import NVRX, TORCHFT, install, recover_peer, recover_torchft, report_peer_failure
from recovery_programs import BUG, BUGS, UNKNOWN, WAIT
from recovery_stage import FOLDER, PATIENCE, SEED, Recovered, Stage, kill

# What a GPU computes meanwhile, for the section goodput: a core of the host is idle then.
STEP_SECONDS = 0.25
SLOW = ("--env", f"PYTHONPATH={FOLDER}/wait", "--env", "OMP_NUM_THREADS=1")


# -- bugs of programs --------------------------------------------------------------------------------------------------


def measure_bugs(figures: Figures, *, quick: bool) -> None:
    chosen = [*list(BUGS)[:3], *UNKNOWN[:1]] if quick else list(BUGS)
    restarts, unknown = dict[str, int](), dict[str, int]()
    with Stage("bugs", 2) as stage:
        for number, name in enumerate(chosen):
            stage.put(f"bug{number}.py", BUG.format(body=BUGS[name]))
            with stage.run("aboard", "launch", "--restarts", "3", "--", f"bug{number}.py") as run:
                run.wait_end(PATIENCE)
            count = sum(event["kind"] == "generation" for event in stage.read_events()) - 1
            (unknown if name in UNKNOWN else restarts)[name] = count
            print(f"    {name}: {count} restarts, {describe_decisions(stage)}", flush=True)
    failed = [name for name, count in restarts.items() if count]
    figures.add(f"restarts after {len(restarts)} bugs of programs", sum(restarts.values()), 0, note=", ".join(failed))
    figures.add("most restarts after one of unknown cause", max(unknown.values()), 1)


# -- a killed rank, and a lost node ------------------------------------------------------------------------------------


def measure_rank(figures: Figures, *, quick: bool) -> None:
    """Rank 1's process gets SIGKILL; peers on the same hosts, with the same model and the same kill, in turns."""
    ours: dict[str, list[Recovered]] = {"with standbys": [], "without standbys": []}
    peers: dict[str, list[Recovered]] = {"torchrun": []}
    alone: list[float] = []
    nvrx, torchft = install("ft_launcher", NVRX), install("torchft", TORCHFT)
    peers |= {name: [] for name, folder in (("ft_launcher", nvrx), ("torchft", torchft)) if folder}
    with Stage("rank", 2) as stage:
        stage.put_training()
        for name in ("recovery_peer.py", "torchft_peer.py"):
            stage.put(name, (Path(__file__).parent / "train_peers" / name).read_text())
        for number in range(1 if quick else 3):
            for name, turns in ours.items():
                waiting = 2 if name == "with standbys" else 0
                out = f"ours-{number}-{waiting}"
                turns.append(recover_training(stage, out, 2, lambda host: kill(stage.find_rank(host)), waiting=waiting))
                print(f"    aboard train {name}: {turns[-1]}", flush=True)
            for name, turns in peers.items():
                with report_peer_failure(name):
                    if name == "torchft":
                        recovered, going_on = recover_torchft(stage, number, torchft)
                        alone.append(going_on)
                        print(f"    torchft, the next step on one of two ranks: {going_on:.1f} s", flush=True)
                    else:
                        recovered = recover_peer(stage, name, number, nvrx)
                    turns.append(recovered)
                    print(f"    {name}: {turns[-1]}", flush=True)
    cold = statistics.median(each.cold for turns in ours.values() for each in turns)
    for (kind, turns), bar in zip(ours.items(), (0.4, 1.0), strict=True):
        own = statistics.median(each.total for each in turns)
        note = f"{own:.1f} s : {cold:.1f} s, medians of {len(turns)}"
        figures.add(f"rank killed → next step ÷ cold start, {kind}", own / cold, bar, note=note)
        for name, each in peers.items():
            if each:
                other = statistics.median(one.total for one in each)
                start = statistics.median(one.cold for one in each)
                note = f"{own:.1f} s : {other:.1f} s, whose cold start takes {start:.1f} s"
                if name == "torchft":
                    note += f"; on one of two ranks it goes on after {statistics.median(alone):.1f} s"
                figures.add(f"the same, {kind} ÷ {name}'s, on as many ranks", own / other, 1.0, note=note)
            else:
                print(f"{name}: no figure, since it did not train again", flush=True)


def measure_spare(figures: Figures, *, quick: bool) -> None:
    """The second of two nodes loses its power, and the third takes over; checkpoints are on a shared disk."""
    found: dict[str, list[Recovered]] = {"with standbys": [], "without standbys": []}
    with Stage("spare", 3) as stage:
        stage.put_training()

        def cut_power(host: Host) -> float:
            at = time.time()
            host.kill_power()
            return at

        for number in range(1 if quick else 3):
            for kind, turns in found.items():
                waiting = 3 if kind == "with standbys" else 0
                turns.append(recover_training(stage, f"out-{number}-{waiting}", 3, cut_power, waiting=waiting))
                print(f"    {kind}: {turns[-1]}", flush=True)
                stage.box.host("n2").power_on()
    for (kind, turns), bar in zip(found.items(), (0.6, 1.0), strict=True):
        ratio = statistics.median((each.total - each.detection) / each.cold for each in turns)
        note = ", ".join(
            f"{each.detection:.1f} + {each.total - each.detection:.1f} s : {each.cold:.1f} s" for each in turns
        )
        figures.add(f"node lost → next step on the spare, after detection ÷ cold start, {kind}", ratio, bar, note=note)


def recover_training(
    stage: Stage, out: str, nodes: int, fail: Callable[[Host], float], *, waiting: int = 0
) -> Recovered:
    """Starts `aboard train`, lets n2 fail once a checkpoint is complete, and waits for the next step.

    A third node is a spare. Before, standbys are `waiting` on this many nodes; 0 means that they are turned off.
    """
    path, began = f"{out}/metrics.jsonl", time.time()
    words = ("--restarts", "5", *(("--spares", "1") if nodes == 3 else ()))
    words = (*words, "--set", f"recover.standby={str(waiting > 0).lower()}")
    with stage.run(*stage.train(f"n[1-{nodes}]", out, *words, max_steps=100_000, save_steps=20)) as run:

        def find_step(after: float) -> float:
            return next((line["time"] for line in stage.read_lines(path) if line["time"] > after), 0.0)

        cold = run.wait("the first step", lambda: find_step(began), PATIENCE) - began
        run.wait("a checkpoint", lambda: any(line["step"] > 30 for line in stage.read_lines(path)), PATIENCE)
        if waiting:
            stage.favor_standbys()
            run.wait("standbys", lambda: stage.count_standbys() == waiting, PATIENCE)
        failed = fail(stage.box.host("n2"))
        again = run.wait("the next attempt", lambda: stage.find_event("generation", failed), PATIENCE)
        decided = stage.find_event("deciding", failed)
        step = run.wait("the next step", lambda: find_step(again), PATIENCE)
        stage.stop()
        run.wait_end(PATIENCE)
    return Recovered(cold=cold, detection=decided - failed, total=step - failed)


# -- goodput -----------------------------------------------------------------------------------------------------------


def measure_goodput(figures: Figures, *, minutes: float) -> None:
    """Four hosts and a spare; failures at random times, in 30 minutes 12 kills, 2 cuts, a lost node.

    Each step also waits STEP_SECONDS, in this run and in the undisturbed one.
    """
    draw = random.Random(SEED)  # noqa: S311 - no secrets
    count = minutes / 30
    kinds = ["kill"] * round(12 * count) + ["cut"] * round(2 * count) + ["power"] * max(1, round(count))
    draw.shuffle(kinds)
    with Stage("goodput", 5) as stage:
        stage.put_training()
        stage.put("wait/sitecustomize.py", WAIT.format(seconds=STEP_SECONDS))
        usual = measure_undisturbed_step(stage)
        out, words = "out", (*SLOW, "--restarts", "10", "--spares", "1")
        train = stage.train("n[1-5]", out, *words, max_steps=10_000_000, save_steps=20, logging_steps=5)
        typed = time.time()
        with stage.run(*train) as run:
            # Until then, the newest run is the undisturbed one.
            began = run.wait("the first attempt", lambda: stage.find_event("generation", typed), PATIENCE)
            times = sorted(draw.uniform(30, minutes * 60 - 90) for _ in kinds)
            for kind, at in zip(kinds, times, strict=True):
                run.wait("the next failure", partial(is_past, began + at), minutes * 60)
                hosts = [host for host in stage.box.nodes if host.on and stage.find_rank(host)]
                # Rank 0's node keeps running: metrics.jsonl is on the shared disk, but its loss would be another case.
                host = draw.choice(hosts[1:] or stage.box.nodes[1:4])
                load = os.getloadavg()[0]
                print(f"    {time.time() - began:6.0f} s, load {load:.1f}: {kind} {host.name}", flush=True)
                if kind == "kill":
                    kill(stage.find_rank(host))
                elif kind == "power":
                    host.kill_power()
                else:
                    with inject_temporarily(stage.box, host, LinkDown()):
                        time.sleep(8)
            run.wait("the end", partial(is_past, began + minutes * 60), minutes * 60)
            lines = [line for line in stage.read_lines(f"{out}/metrics.jsonl") if "loss" in line]
            wall, steps = lines[-1]["time"] - began, lines[-1]["step"]
            stage.stop()
            run.wait_end(PATIENCE)
            said = run.said
    goodput = steps * usual / wall
    own = next((line for line in said.splitlines() if line.startswith("goodput ")), "")
    note = f"goodput {goodput:.2f}: {steps} steps of {usual * 1e3:.1f} ms in {wall:.0f} s, {len(kinds)} failures; {own}"
    figures.add("share of the time that was no committed step", 1 - goodput, 0.2, note=note)


def is_past(at: float) -> bool:
    return time.time() > at


def measure_undisturbed_step(stage: Stage) -> float:
    """The median step of a run of its own, without failures."""
    train = stage.train("n[1-4]", "undisturbed", *SLOW, max_steps=200, save_steps=20, logging_steps=5)
    with stage.run(*train) as run:
        run.wait_end(PATIENCE)
    lines = stage.read_lines("undisturbed/metrics.jsonl")
    return statistics.median([float(line["step_seconds"]) for line in lines if "loss" in line])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("bugs", "actions", "rank", "spare", "goodput")
    parser.add_argument("--only", choices=sections, help="measure this section only")
    parser.add_argument("--quick", action="store_true", help="a few bugs and actions; takes at most 60 s")
    parser.add_argument("--minutes", type=float, default=30.0, help="the length of the goodput section (30)")
    parser.add_argument("--done", metavar="FILE", type=Path, help="the actions that were tested; skip those in it")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    figures = Figures("recovery")
    chosen = [options.only] if options.only else sections[:2] if options.quick else sections
    for section in chosen:
        if section == "goodput":
            measure_goodput(figures, minutes=options.minutes)
        elif section == "actions":
            measure_actions(figures, quick=options.quick, done=options.done)
        else:
            measures = {"bugs": measure_bugs, "rank": measure_rank, "spare": measure_spare}
            measures[section](figures, quick=options.quick)
    sys.exit(figures.finish(options.json))


if __name__ == "__main__":
    main()
