"""Runs in jobs of a real Slurm, controlled from the login node, with a home that the nodes share and without."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import slowness, wait_until
from launching import PYTHON, Launches, build_sandbox, count_ranks

# On one worker: what the fixture sets up is dear.
pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-control")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
REQUEST = f"cluster:\n  python: {PYTHON}\n  slurm: {{nodes: 2, gpus_per_node: 1, time: 10}}\n"
# More steps than a test has time for.
LONG = (
    *("--set", "train.max_steps=100000", "--set", "train.save_steps=null", "--set", "train.eval_steps=null"),
    *("--check", "none", "--env", "OMP_NUM_THREADS=1"),
)
PREEMPTIBLE = ("--set", "cluster.slurm.extra=--exclusive", "--set", "cluster.slurm.resubmit.limit=1")
# Takes a while to save, as trainers do.
SAVES = """\
import signal, sys, time
def save(*_):
    time.sleep(1.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module", params=["apart", "shared"])
def login(request: pytest.FixtureRequest) -> Iterator[Launches]:
    """The head is the login node of two nodes, which share its home or do not."""
    shape = {"nodes": 2, "slots": 1, "slurm": True, "shared_home": request.param == "shared"}
    with build_sandbox(f"control-{request.param}", **shape) as box:
        for partition in ("preempt-cancel", "preempt-requeue"):
            # The default of 5 s is too short for a training that saves on a busy machine; one that has saved leaves.
            update = ["scontrol", "update", f"partitionname={partition}", "gracetime=60"]
            box.head.run(update, root=True).check_returncode()
        launches = Launches(box)
        launches.put("aboard.yaml", REQUEST)
        launches.put("saves.py", SAVES)
        yield launches


def test_commands_on_the_login_node_reach_the_conductor(login: Launches) -> None:
    """Status, logs, why and stop of a run that was submitted, and of one that waits behind it."""
    run = submit(login, "launch", "--check", "none", "--", "saves.py")
    wait_for_ranks(login, run)
    assert "training" in login.aboard("logs", run).stdout
    second = submit(login, "launch", "--check", "none", "--", "saves.py")
    states = {line.split("\t")[0]: line.split("\t") for line in login.aboard("status").stdout.splitlines()}
    assert states[run][1] == "running"
    assert (states[second][1], "is waiting: " in states[second][5]) == ("pending", True)
    assert "2 ranks on 2 nodes" in login.aboard("status", run).stdout
    said = login.aboard("why", run).stdout
    assert f"{run} is running:" in said
    assert "nothing wrong was found" in said or "makes progress" in said
    assert "has stopped: job" in login.aboard("stop", second).stdout
    stopped = login.aboard("stop", run)
    assert (stopped.returncode, stopped.stdout) == (0, f"{run} has stopped\n")
    wait_for_empty_queue(login, 20)
    assert find_state(login, run) == "stopped"
    assert login.orphans(run) == {}


@pytest.mark.parametrize("login", ["apart", pytest.param("shared", marks=pytest.mark.nightly)], indirect=True)
def test_scancel_leaves_the_ranks_the_time_to_save(login: Launches) -> None:
    """KillWait is five seconds here; the script's output has what they printed last, and the reason."""
    run = submit(login, "launch", "--check", "none", "--", "saves.py")
    job = wait_for_ranks(login, run)
    login.box.head.run(["scancel", str(job)]).check_returncode()
    wait_for_empty_queue(login, 20)
    said = read_output(login, job)
    assert count_ranks(said, "saved") == 2, said
    assert f"job {job} was cancelled; exit code 130" in said.splitlines()[-1]


@pytest.mark.parametrize("login", ["apart"], indirect=True)
def test_the_run_saves_before_the_time_limit(login: Launches) -> None:
    """Slurm's signal reaches the conductor, which stops the ranks in the time that is left."""
    run = submit(login, "launch", "--check", "none", "--", "saves.py")
    job = wait_for_ranks(login, run)
    # The script asks for a signal 120 s before; slurmctld looks every 30 s.
    update = ["scontrol", "update", f"jobid={job}", "endtime=now+100"]
    login.box.head.run(update, root=True).check_returncode()
    wait_for_empty_queue(login, 60)
    said = read_output(login, job)
    assert count_ranks(said, "saved") == 2, said
    assert f": job {job} reaches its time limit in " in said.splitlines()[-1]


@pytest.mark.nightly
def test_a_preempted_training_continues_in_a_further_job(login: Launches) -> None:
    """It saves when Slurm gives notice, and the further job resumes from there when the nodes are free again."""
    run, job = submit_training(login, "preempt-cancel")
    login.box.head.run(["srun", "--nodes=2", "--exclusive", "true"], timeout=120).check_returncode()
    said = read_output(login, job)
    assert f"job {job} is preempted" in said
    before, _, after = said.partition(" continues from step ")
    saved = int(after.partition(" ")[0].replace(",", ""))
    further = int(before.rpartition("job ")[2])
    wait_until(lambda: has_resumed(read_output(login, further), saved), 120, lambda: show(login))
    assert login.aboard("stop", run).returncode == 0
    wait_for_empty_queue(login, 20)


@pytest.mark.nightly
@pytest.mark.parametrize("login", ["apart"], indirect=True)
def test_a_requeued_training_resumes(login: Launches) -> None:
    """Slurm starts the same job again, minutes later; it continues from the checkpoint that the notice led to."""
    run, job = submit_training(login, "preempt-requeue")
    login.box.head.run(["srun", "--nodes=2", "--exclusive", "true"], timeout=120).check_returncode()
    said = read_output(login, job)
    assert f"job {job} is preempted" in said
    saved = int(said.rpartition("continues from step ")[2].partition("\n")[0].replace(",", ""))
    note = f"Slurm requeued job {job}: training continues from its newest checkpoint"
    wait_until(lambda: has_resumed(read_output(login, job).partition(note)[2], saved), 240, lambda: show(login))
    assert login.aboard("stop", run).returncode == 0
    wait_for_empty_queue(login, 20)


def submit_training(login: Launches, partition: str) -> tuple[str, int]:
    """The run and the job of a training that has made steps in this partition."""
    for name in ("make_data.py", "make_model.py"):
        login.put(name, (EXAMPLE / name).read_text("utf-8"))
        assert login.box.head.run([PYTHON, name], cwd=login.folder, timeout=60 * slowness()).returncode == 0
    login.put("train.yaml", (EXAMPLE / "aboard.yaml").read_text("utf-8"))
    sets = (f"cluster.slurm.partition={partition}", f"train.output_dir={login.folder}/{partition}")
    words = [word for each in sets for word in ("--set", each)]
    run = submit(login, "train", "train.yaml", "aboard.yaml", *LONG, *PREEMPTIBLE, *words)
    wait_for_step(login, partition, 5)
    return run, read_job(login, run)


def submit(login: Launches, *words: str) -> str:
    """The run of a command that only submits."""
    done = login.aboard(words[0], "--detach", *words[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if ": submitted job " in line)
    return line.partition(":")[0]


def wait_for_ranks(login: Launches, run: str) -> int:
    """Waits until both ranks have begun; the job. From the script's output: `aboard logs` would keep a core busy."""
    job = read_job(login, run)
    wait_until(lambda: count_ranks(read_output(login, job), "training") == 2, 60, lambda: show(login))
    return job


def wait_for_step(login: Launches, partition: str, number: int, seconds: float = 90) -> None:
    """From the metrics in the shared directory, for the same reason."""
    steps = ["grep", "-o", f'"step": *{number}\\b', f"{login.folder}/{partition}/metrics.jsonl"]
    wait_until(lambda: login.box.head.run(steps).stdout, seconds, lambda: show(login))


def has_resumed(said: str, saved: int) -> bool:
    """Whether a start of the training says that it resumed, and makes steps after the saved one only."""
    steps = [int(step.replace(",", "")) for step in re.findall(r"step ([\d,]+)/", said)]
    return "resumed from" in said and bool(steps) and min(steps) > saved


def wait_for_empty_queue(login: Launches, seconds: float) -> None:
    wait_until(lambda: not login.box.head.run(["squeue", "--noheader"]).stdout, seconds)


def read_job(login: Launches, run: str) -> int:
    """The job as the login node has recorded it."""
    return int(json.loads(login.read(run, "slurm.json"))["id"])


def read_output(login: Launches, job: int) -> str:
    """The output of the job's script."""
    return login.box.head.run(["cat", f"{login.folder}/slurm-{job}.out"]).stdout


def find_state(login: Launches, run: str) -> str:
    lines = [line.split("\t") for line in login.aboard("status").stdout.splitlines()]
    return next(line[1] for line in lines if line[0] == run)


def show(login: Launches) -> str:
    queue = login.box.head.run(["squeue"]).stdout
    outputs = login.box.head.run(["sh", "-c", f"tail -n 30 {login.folder}/slurm-*.out"]).stdout
    return f"{queue}{outputs}"
