"""60 injected faults on 8 hosts and 2 spares: the first action must be that of docs/recovery.md, on as many ranks.

20 of them are in `aboard train`, the others in scripts without torch under `aboard launch --restarts`.
"""

import json
import random
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from aboard.sandbox import Host
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.disk import DiskFull
from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.faults.network.links import LinkDown
from figures import Figures
from recovery_programs import JOB, SABOTAGE
from recovery_stage import FOLDER, PATIENCE, SEED, Stage, kill

# Ten ranks of a training that start at once share two cores.
TRAINING_PATIENCE = 900.0


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A way to fail: by the program itself, or by what is done to its node; and the action of docs/recovery.md."""

    name: str
    action: str
    how: str = "wait"
    agent: str = ""
    stop: bool = False
    fault: Fault | None = None
    # Whether `aboard train` is tested with it, too.
    trains: bool = True


@dataclass(frozen=True, kw_only=True)
class Done:
    """One fault and what was done about it; `said` is the end of the output if that was wrong."""

    name: str
    node: str
    trains: bool
    expected: str
    action: str
    smaller: bool
    said: str = ""


INJECTIONS = (
    Injection(name="rank killed", action="restart", how="kill"),
    Injection(name="port taken", action="restart", how="port", trains=False),
    Injection(name="exit code", action="restart", how="exit"),
    Injection(name="segmentation fault", action="restart", how="segv"),
    Injection(name="exception on one node", action="stop", how="bug"),
    Injection(name="exception everywhere", action="stop", how="everywhere", trains=False),
    Injection(name="GPU memory", action="stop", how="memory"),
    Injection(name="file missing on one node", action="replace", how="file", trains=False),
    Injection(name="package missing on one node", action="replace", how="package", trains=False),
    Injection(name="private disk full", action="replace", how="disk", fault=DiskFull(free_mib=4), trains=False),
    Injection(name="supervisor killed", action="replace", agent="supervisor"),
    Injection(name="guard killed", action="replace", agent="guard"),
    Injection(name="rank stopped by a person", action="wait", stop=True),
    Injection(name="power lost", action="replace", fault=PowerLoss()),
    Injection(name="cable unplugged", action="replace", fault=LinkDown()),
)


def measure_actions(figures: Figures, *, quick: bool, done: Path | None) -> None:
    """Each kind four times; with a trainer two of the four. `done` names a file of what was tested before."""
    draw = random.Random(SEED)  # noqa: S311 - no secrets
    cases = [(each, each.trains and turn < 2) for each in INJECTIONS for turn in range(4)]
    # Trainings last: they take most of the time.
    cases.sort(key=lambda case: case[1])
    cases = [(INJECTIONS[place], False) for place in (0, 4, 7, 10)] if quick else cases
    nodes, spares = (3, 1) if quick else (8, 2)
    drawn = [(case, f"n{draw.randint(1, nodes)}", trains) for case, trains in cases]
    found = [Done(**each) for each in json.loads(done.read_text())] if done is not None and done.exists() else []
    training: Stage | None = None
    try:
        for case, victim, trains in drawn[len(found) :]:
            if trains and training is None:
                training = Stage("actions-train", nodes + spares)
                training.put_training()
                training.put("sabotage/sitecustomize.py", SABOTAGE)
            began = time.time()
            try:
                if trains and training is not None:
                    action, worlds, said = inject_training(training, case, victim, nodes, spares)
                else:
                    with Stage("actions", nodes + spares) as stage:
                        action, worlds, said = inject_script(stage, case, victim, spares)
            except TimeoutError as error:
                action, worlds, said = "none", set(), str(error)
                if training is not None:
                    training.box.down()
                    training = None
            good, smaller = action == case.action, any(world != nodes for world in worlds)
            text = "" if good and not smaller else said[-3000:]
            found.append(
                Done(
                    name=case.name,
                    node=victim,
                    trains=trains,
                    expected=case.action,
                    action=action,
                    smaller=smaller,
                    said=text,
                )
            )
            program = "aboard train" if trains else "a script"
            seconds = f"{time.time() - began:.0f} s"
            print(f"    {case.name} on {victim}, {program}: {action}, {seconds} {'' if good else 'WRONG'}", flush=True)
            print(text, end="", flush=True)
            if done is not None:
                done.write_text(json.dumps([asdict(each) for each in found], indent=1))
    finally:
        if training is not None:
            training.box.down()
    wrong = [each for each in found if each.action != each.expected]
    note = ", ".join(f"{each.name}{' (train)' if each.trains else ''}" for each in wrong)
    count = f"{len(found)} faults, {sum(each.trains for each in found)} of them in aboard train"
    figures.add(f"wrong actions after {count}", len(wrong), round(len(found) * 3 / 60), note=note)
    figures.add("attempts with a smaller world", sum(each.smaller for each in found), 0)


def inject_script(stage: Stage, case: Injection, victim: str, spares: int) -> tuple[str, set[int], str]:
    """The first action, the sizes of the worlds, and the output."""
    stage.put("job.py", JOB)
    job = ("--lease", "8", "--spares", str(spares), "--restarts", "3", "--", "job.py", case.how, victim)
    with stage.run("aboard", "launch", *job) as run, ExitStack() as faults:
        host = stage.box.host(victim)
        if isinstance(case.fault, DiskFull):
            faults.enter_context(inject_temporarily(stage.box, host, case.fault))

        def is_started() -> bool:
            started = [event for event in stage.read_events() if event["kind"] == "started"]
            return len(started) >= len(stage.box.nodes) - spares

        run.wait("all ranks start", is_started, PATIENCE)
        do_harm(stage, case, host, faults)
        run.wait_end(PATIENCE)
        said = run.said
    worlds = {int(count) for count in re.findall(r"\] rank \d+ of (\d+)", said)}
    return read_action(stage), worlds, said


def inject_training(stage: Stage, case: Injection, victim: str, nodes: int, spares: int) -> tuple[str, set[int], str]:
    """The same in `aboard train`, after its first checkpoint; ends with the first step of the next attempt."""
    out = f"out-{time.time_ns()}"
    words = ("--spares", str(spares), "--env", f"PYTHONPATH={FOLDER}/sabotage", "--set", "recover.standby=false")
    stage.box.head.run(["rm", "-f", f"{FOLDER}/sabotage/go"])
    known = stage.find_run()
    train = stage.train(f"n[1-{nodes + spares}]", out, *words, max_steps=100_000, save_steps=20)
    with stage.run(*train) as run, ExitStack() as faults:
        host = stage.box.host(victim)
        run.wait("a checkpoint", lambda: stage.find_run() != known and stage.find_event("saved"), TRAINING_PATIENCE)
        do_harm(stage, case, host, faults)
        if case.how == "kill":
            kill(stage.find_rank(host))
        elif case.how != "wait":
            stage.put("sabotage/go", f"{case.how} {victim}")
        run.wait("a decision", lambda: is_decided(stage), TRAINING_PATIENCE)
        if case.action != "stop":
            again = run.wait("an attempt", lambda: count_attempts(stage) > 1 or run.code is not None, TRAINING_PATIENCE)
            at = time.time() if again else 0.0
            run.wait(
                "its first step",
                lambda: (
                    run.code is not None or any(line["time"] > at for line in stage.read_lines(f"{out}/metrics.jsonl"))
                ),
                TRAINING_PATIENCE,
            )
            stage.stop()
        run.wait_end(PATIENCE)
        said = run.said
    return read_action(stage), {int(count) for count in re.findall(r"^phase \w+ \d+/(\d+)", said, re.MULTILINE)}, said


def do_harm(stage: Stage, case: Injection, host: Host, faults: ExitStack) -> None:
    """What is done to the host or its processes; the job does the rest by itself."""
    if case.agent:
        kill(stage.find_agent(host, case.agent))
    elif case.stop:
        kill(stage.find_rank(host), signal.SIGSTOP)
    elif case.fault is not None and not isinstance(case.fault, DiskFull):
        faults.enter_context(inject_temporarily(stage.box, host, case.fault))


def is_decided(stage: Stage) -> bool:
    return bool(stage.find_event("recovering") or stage.find_event("finished"))


def count_attempts(stage: Stage) -> int:
    return sum(event["kind"] == "generation" for event in stage.read_events())


def read_action(stage: Stage) -> str:
    """The first decision about the newest run; none if it ended without one."""
    decided = [event for event in stage.read_events() if event["kind"] in ("recovering", "finished")]
    return str(decided[0].get("data", {}).get("action", "none")) if decided else "none"


def describe_decisions(stage: Stage) -> str:
    events = [event["data"] for event in stage.read_events() if event["kind"] == "recovering"]
    return "; ".join(f"{data['code']}: {data['failure']}, {data['action']}" for data in events) or "no failure"
