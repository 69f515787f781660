"""Standby processes: a rank is killed, and how long until the next step is done, with standbys and without.

Both are divided by the cold start of the same training, from the command to the end of its first step, and take turns.
The training is the example `finetune` on two sandbox hosts; without standbys means that they are killed first.
"""

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aboard.agent import process_tree, procfs
from aboard.sandbox import Sandbox
from figures import Figures, main

# The benches reuse the harnesses of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
EXAMPLE = Path(__file__).parents[1] / "examples" / "finetune"
FOLDER = "/shared/job"
TIMEOUT = 600.0
TRAIN = (
    *("train", "n[1-2]", "--restarts", "3", "--set", f"cluster.python={PYTHON}"),
    *("--set", "train.max_steps=100000", "--set", "train.num_train_epochs=null"),
    *("--set", "train.eval_steps=null", "--set", "train.save_steps=20", "--env", "OMP_NUM_THREADS=1"),
)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Seconds from the command to the first step, and from the kill to the next one; megabytes of each standby."""

    cold: float
    recovered: float
    memory: float


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures how long a killed rank takes to be replaced, with standbys and without."""
    from launching import Launches  # noqa: PLC0415 - of the tests

    turns: dict[bool, list[Turn]] = {True: [], False: []}
    with Sandbox.up(f"bench-standby-{os.getpid()}", nodes=2, slots=1, temporary=True) as box:
        launches = Launches(box, folder=FOLDER)
        for name in ("make_data.py", "make_model.py", "aboard.yaml"):
            launches.put(name, (EXAMPLE / name).read_text("utf-8"))
        for name in ("make_data.py", "make_model.py"):
            box.head.run([PYTHON, name], cwd=FOLDER, timeout=TIMEOUT).check_returncode()
        for number in range(1 if quick else 5):
            for warm in (True, False):
                turns[warm].append(_take_turn(launches, f"out-{number}-{warm}", warm=warm))
                print(f"    {'with' if warm else 'without'} standbys: {turns[warm][-1]}", flush=True)
    cold = statistics.median(turn.cold for each in turns.values() for turn in each)
    for warm, bar in ((True, 0.4), (False, 1.0)):
        seconds = statistics.median(turn.recovered for turn in turns[warm])
        note = f"{seconds:.1f} s; cold start {cold:.1f} s; median of {len(turns[warm])}"
        figures.add(f"rank killed → next step, {'with' if warm else 'without'} / cold", seconds / cold, bar, note=note)
    memory = statistics.median(turn.memory for turn in turns[True])
    figures.add("memory of a standby, without shared pages", memory, 400, unit="MB")


def _take_turn(launches: Any, out: str, *, warm: bool) -> Turn:
    from deadlines import wait_until  # noqa: PLC0415 - of the tests

    known, began = launches.newest(), time.time()
    with launches.going(*TRAIN, "--set", f"train.output_dir={out}") as going:

        def wait(condition: Callable[[], bool]) -> None:
            wait_until(lambda: condition() or going.ended, TIMEOUT, lambda: going.said)
            if not condition():
                raise RuntimeError(going.said)

        wait(lambda: launches.newest() != known)
        run = launches.newest()
        wait(lambda: bool(_list_steps(launches, out)))
        cold = _list_steps(launches, out)[0] - began
        # Two cores have two ranks that never wait; on GPUs, the cores of a node are mostly idle.
        for pid in _find_processes(run):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
        wait(lambda: {"standbys", "saved"} <= _list_kinds(launches, run))
        standbys = _find_processes(f"{run}.2")
        memory = statistics.median(map(_read_own_memory, standbys))
        if not warm:
            process_tree.send_signal(standbys, signal.SIGKILL)
        killed = time.time()
        ranks = set(_find_processes(run)) & set(launches.box.host("n2").pids())
        process_tree.send_signal(ranks, signal.SIGKILL)
        wait(lambda: _find_next_step(launches, run, out) is not None)
        recovered = (_find_next_step(launches, run, out) or 0.0) - killed
        launches.aboard("stop", run)
        going.wait(TIMEOUT)
        starts = [each["data"].get("standby", False) for each in launches.events(run) if each["kind"] == "started"]
        if starts[2:4] != [warm, warm]:
            raise RuntimeError(f"not the intended start: {starts}")
    return Turn(cold=cold, recovered=recovered, memory=memory / 1e6)


def _find_processes(run: str) -> list[int]:
    """The trainers with this run id, as the machine's root sees them."""
    found = process_tree.find_run_processes(run)
    return [pid for pid in found if b"aboard.trainer" in procfs.read_kernel_file(f"/proc/{pid}/cmdline")]


def _read_own_memory(pid: int) -> int:
    """Bytes that it does not share with a file: status in proc(5)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def _list_steps(launches: Any, out: str) -> list[float]:
    """When each step ended."""
    path = Path(f"/proc/{launches.box.head.pid}/root{FOLDER}/{out}/metrics.jsonl")
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [line["time"] for line in map(json.loads, lines) if line.get("loss") is not None]


def _list_kinds(launches: Any, run: str) -> set[str]:
    return {each["kind"] for each in launches.events(run)}


def _find_next_step(launches: Any, run: str, out: str) -> float | None:
    """The end of the first step of the second generation."""
    starts = [each["at"] for each in launches.events(run) if each["kind"] == "generation"]
    return next((end for end in _list_steps(launches, out) if len(starts) > 1 and end > starts[1]), None)


if __name__ == "__main__":
    main("standby", measure)
