"""What recovery costs, and whether it does what its table says.

    python bench/recovery.py [--quick] [--only SECTION] [--minutes N] [--json FILE]

Sections: `bugs` (20 deterministic bugs of programs: restarts), `actions` (60 injected faults on 8 hosts and 2 spares:
the action by the table, and never a smaller world), `rank` (a killed rank: time to the next step against a cold start,
beside torchrun and ft_launcher on the same hosts), `spare` (a lost node: time to the next step on the spare),
`goodput` (half an hour with 12 killed ranks, 2 cuts and a lost node). `--quick`: a few bugs and actions.

ft_launcher is that of nvidia-resiliency-ext 0.4.1, an old version: PyPI has no newer one.
"""

import argparse
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aboard.sandbox import Host
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.disk import DiskFull
from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.faults.network.links import LinkDown
from figures import Figures
from recovery_programs import BUG, BUGS, JOB, UNKNOWN
from recovery_stage import FOLDER, Stage, kill

NVRX = ("nvidia-resiliency-ext==0.4.1", "defusedxml", "psutil", "nvidia-ml-py", "pynvml")
PATIENCE = 240.0
SEED = 33


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


# -- actions by the table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A way to fail: by the program itself, or by what is done to its node; and the action of docs/recovery.md."""

    name: str
    action: str
    how: str = "wait"
    agent: str = ""
    stop: bool = False
    fault: Fault | None = None


INJECTIONS = (
    Injection(name="rank killed", action="restart", how="kill"),
    Injection(name="port taken", action="restart", how="port"),
    Injection(name="exit code", action="restart", how="exit"),
    Injection(name="segmentation fault", action="restart", how="segv"),
    Injection(name="exception on one node", action="stop", how="bug"),
    Injection(name="exception everywhere", action="stop", how="everywhere"),
    Injection(name="GPU memory", action="stop", how="memory"),
    Injection(name="file missing on one node", action="replace", how="file"),
    Injection(name="package missing on one node", action="replace", how="package"),
    Injection(name="private disk full", action="replace", how="disk", fault=DiskFull(free_mib=4)),
    Injection(name="supervisor killed", action="replace", agent="supervisor"),
    Injection(name="guard killed", action="replace", agent="guard"),
    Injection(name="rank stopped by a person", action="wait", stop=True),
    Injection(name="power lost", action="replace", fault=PowerLoss()),
    Injection(name="cable unplugged", action="replace", fault=LinkDown()),
)


def describe_decisions(stage: Stage) -> str:
    events = [event["data"] for event in stage.read_events() if event["kind"] == "recovering"]
    return "; ".join(f"{data['code']}: {data['failure']}, {data['action']}" for data in events) or "no failure"


def measure_actions(figures: Figures, *, quick: bool) -> None:
    repeats = 1 if quick else 4
    draw = random.Random(SEED)  # noqa: S311 - no secrets
    cases = [each for each in INJECTIONS for _ in range(repeats)]
    cases = [INJECTIONS[place] for place in (0, 4, 7, 10)] if quick else cases
    right, smaller, wrong = 0, 0, []
    nodes, spares = (3, 1) if quick else (8, 2)
    for case in cases:
        victim = f"n{draw.randint(1, nodes)}"
        with Stage("actions", nodes + spares) as stage:
            try:
                action, worlds, said = inject(stage, case, victim, spares)
            except TimeoutError as error:
                action, worlds, said = "none", set(), str(error)[-400:]
        good = action == case.action
        right += good
        smaller += any(world != nodes for world in worlds)
        print(
            f"    {case.name} on {victim}: {action}, by the table {case.action} {'' if good else 'WRONG'}", flush=True
        )
        if not good:
            wrong.append(case.name)
            print(said[-1500:], flush=True)
    allowed = round(len(cases) * 3 / 60)
    figures.add(f"wrong actions after {len(cases)} faults", len(cases) - right, allowed, note=", ".join(wrong))
    figures.add("attempts with a smaller world", smaller, 0)


def inject(stage: Stage, case: Injection, victim: str, spares: int) -> tuple[str, set[int], str]:
    """The first action, the sizes of the worlds, and the output."""
    stage.put("job.py", JOB)
    host = stage.box.host(victim)
    job = ("--lease", "8", "--spares", str(spares), "--restarts", "3", "--", "job.py", case.how, victim)
    with stage.run("aboard", "launch", *job) as run:

        def is_started() -> bool:
            started = [event for event in stage.read_events() if event["kind"] == "started"]
            return len(started) >= len(stage.box.nodes) - spares

        def find_decision() -> list[dict[str, Any]]:
            return [event for event in stage.read_events() if event["kind"] in ("recovering", "finished")]

        with inject_temporarily(stage.box, host, *([case.fault] if isinstance(case.fault, DiskFull) else [])):
            run.wait("all ranks start", is_started, PATIENCE)
            if case.agent:
                kill(stage.find_agent(host, case.agent))
            elif case.stop:
                kill(stage.find_rank(host), signal.SIGSTOP)
            elif case.fault is not None and not isinstance(case.fault, DiskFull):
                with inject_temporarily(stage.box, host, case.fault):
                    run.wait("a decision", find_decision, PATIENCE)
                    run.wait_end(PATIENCE)
            run.wait_end(PATIENCE)
        decision, said = find_decision()[0], run.said
    worlds = {
        int(line.split(" of ")[1].split()[0]) for line in said.splitlines() if "] rank " in line and " of " in line
    }
    return str(decision["data"].get("action", "none")), worlds, said


# -- a killed rank, and a lost node ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Seconds from the command to the first step, from the failure to its detection, and to the next step."""

    cold: float
    detection: float
    total: float


def measure_rank(figures: Figures, *, quick: bool) -> None:
    """Rank 1's process gets SIGKILL; peers on the same hosts, with the same model and the same kill, in turns."""
    ours: list[Recovered] = []
    peers: dict[str, list[Recovered]] = {"torchrun": [], "ft_launcher": []}
    nvrx = install_nvrx()
    with Stage("rank", 2) as stage:
        stage.put_training()
        stage.put("peer.py", (Path(__file__).parent / "train_peers" / "recovery_peer.py").read_text())
        for number in range(1 if quick else 3):
            ours.append(recover_training(stage, f"ours-{number}", "n[1-2]", lambda host: kill(stage.find_rank(host))))
            print(f"    aboard train: {ours[-1]}", flush=True)
            for name in peers if nvrx else ["torchrun"]:
                with report_peer_failure(name):
                    peers[name].append(recover_peer(stage, name, number, nvrx))
                    print(f"    {name}: {peers[name][-1]}", flush=True)
    own = statistics.median(each.total for each in ours)
    cold = statistics.median(each.cold for each in ours)
    note = f"{own:.1f} s : {cold:.1f} s"
    figures.add("rank killed → next step ÷ cold start (1.0 without standby)", own / cold, 1.0, note=note)
    for name, each in peers.items():
        if each:
            other = statistics.median(one.total for one in each)
            start = statistics.median(one.cold for one in each)
            note = f"{own:.1f} s : {other:.1f} s, whose cold start takes {start:.1f} s"
            figures.add(f"rank killed → next step ÷ {name}'s", own / other, 1.0, note=note)
        else:
            print(f"{name}: no figure, since it did not train again", flush=True)


def measure_spare(figures: Figures, *, quick: bool) -> None:
    """The second of two nodes loses its power, and the third takes over; checkpoints are on a shared disk."""
    found = []
    for number in range(1 if quick else 3):
        with Stage("spare", 3) as stage:
            stage.put_training()

            def cut_power(host: Host) -> float:
                at = time.time()
                host.kill_power()
                return at

            found.append(recover_training(stage, f"out-{number}", "n[1-3]", cut_power, "--spares", "1"))
            print(f"    {found[-1]}", flush=True)
    start = statistics.median((each.total - each.detection) / each.cold for each in found)
    shown = ", ".join(
        f"{each.detection:.1f} + {each.total - each.detection:.1f} s : {each.cold:.1f} s" for each in found
    )
    figures.add("node lost → next step on the spare, after detection ÷ cold start", start, 0.6, note=shown)


def recover_training(stage: Stage, out: str, nodes: str, fail: Callable[[Host], float], *words: str) -> Recovered:
    """Starts `aboard train`, lets n2 fail once a checkpoint is complete, and waits for the next step."""
    path, began = f"{out}/metrics.jsonl", time.time()
    words = words or ("--restarts", "5")
    with stage.run(*stage.train(nodes, out, *words, max_steps=100_000, save_steps=20)) as run:

        def find_step(after: float) -> float:
            return next((line["time"] for line in stage.read_lines(path) if line["time"] > after), 0.0)

        cold = run.wait("the first step", lambda: find_step(began), PATIENCE) - began
        run.wait("a checkpoint", lambda: any(line["step"] > 30 for line in stage.read_lines(path)), PATIENCE)
        failed = fail(stage.box.host("n2"))
        again = run.wait("the next attempt", lambda: find_event(stage, "generation", failed), PATIENCE)
        decided = find_event(stage, "deciding", failed)
        step = run.wait("the next step", lambda: find_step(again), PATIENCE)
        stage.stop()
        run.wait_end(PATIENCE)
    return Recovered(cold=cold, detection=decided - failed, total=step - failed)


def find_event(stage: Stage, kind: str, after: float) -> float:
    return next((event["at"] for event in stage.read_events() if event["kind"] == kind and event["at"] > after), 0.0)


def recover_peer(stage: Stage, name: str, number: int, nvrx: str) -> Recovered:
    """The same for a launcher with an agent on each host; what it detects when, it does not say."""
    out = f"{name}-{number}"
    stage.put(f"{out}/steps.jsonl", "")
    module = {"torchrun": "torch.distributed.run", "ft_launcher": "nvidia_resiliency_ext.fault_tolerance.launcher"}
    argv = [
        *("env", f"PYTHONPATH={nvrx if name == 'ft_launcher' else ''}", sys.executable, "-m", module[name]),
        *("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{29400 + number}"),
        *("--max-restarts=5", f"{FOLDER}/peer.py", f"{FOLDER}/model", f"{FOLDER}/{out}"),
    ]
    began = time.time()
    first, second = stage.box.host("n1"), stage.box.host("n2")
    with stage.run(*argv, host=first) as one, stage.run(*argv, host=second):

        def find_step(processes: int) -> float:
            """The first step of this many processes of rank 0."""
            first = {line["pid"]: line["time"] for line in reversed(stage.read_lines(f"{out}/steps.jsonl"))}
            return sorted(first.values())[processes - 1] if len(first) >= processes else 0.0

        cold = one.wait("the first step", lambda: find_step(1), PATIENCE) - began
        saved = Path(f"/proc/{first.pid}/root{FOLDER}/{out}/checkpoint.pt")
        one.wait("a checkpoint", saved.exists, PATIENCE)
        failed = kill(stage.find_rank(second))
        total = one.wait("the next step", lambda: find_step(2), PATIENCE) - failed
    for host in (first, second):
        while pid := stage.find_rank(host):
            kill(pid)
    return Recovered(cold=cold, detection=0.0, total=total)


@contextmanager
def report_peer_failure(name: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        print(f"    {name}: not within {PATIENCE:g} s: {error}", flush=True)


def install_nvrx() -> str:
    """The directory of nvidia-resiliency-ext, which the hosts see as well; "" if it can't be installed."""
    folder = Path(sys.prefix) / "nvrx-0.4.1"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *NVRX]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"ft_launcher: not tested, since it can't be installed: {done.stderr.strip()[-500:]}", flush=True)
            return ""
    return str(folder)


# -- goodput -----------------------------------------------------------------------------------------------------------


def measure_goodput(figures: Figures, *, minutes: float) -> None:
    """Four hosts and a spare; failures at random times, in 30 minutes 12 kills, 2 cuts, a lost node."""
    draw = random.Random(SEED)  # noqa: S311 - no secrets
    count = minutes / 30
    kinds = ["kill"] * round(12 * count) + ["cut"] * round(2 * count) + ["power"] * max(1, round(count))
    draw.shuffle(kinds)
    with Stage("goodput", 5) as stage:
        stage.put_training()
        usual = measure_undisturbed_step(stage)
        out, words = "out", ("--restarts", "10", "--spares", "1")
        train = stage.train("n[1-5]", out, *words, max_steps=10_000_000, save_steps=200, logging_steps=20)
        with stage.run(*train) as run:
            began = run.wait("the first attempt", lambda: find_event(stage, "generation", 0.0), PATIENCE)
            times = sorted(draw.uniform(30, minutes * 60 - 90) for _ in kinds)
            for kind, at in zip(kinds, times, strict=True):
                run.wait("the next failure", partial(is_past, began + at), minutes * 60)
                hosts = [host for host in stage.box.nodes if host.on and stage.find_rank(host)]
                # Rank 0's node keeps running: metrics.jsonl is on the shared disk, but its loss would be another case.
                host = draw.choice(hosts[1:] or stage.box.nodes[1:4])
                print(f"    {time.time() - began:6.0f} s: {kind} {host.name}", flush=True)
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
    train = stage.train("n[1-4]", "undisturbed", max_steps=2000, save_steps=200, logging_steps=20)
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
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    figures = Figures("recovery")
    chosen = [options.only] if options.only else sections[:2] if options.quick else sections
    for section in chosen:
        if section == "goodput":
            measure_goodput(figures, minutes=options.minutes)
        else:
            measures = {"bugs": measure_bugs, "actions": measure_actions, "rank": measure_rank, "spare": measure_spare}
            measures[section](figures, quick=options.quick)
    sys.exit(figures.finish(options.json))


if __name__ == "__main__":
    main()
