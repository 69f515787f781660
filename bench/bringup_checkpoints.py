"""Training without a shared disk: an export from four hosts, and resumes on fewer and on more of them."""

import json
import os
import sys
from pathlib import Path
from time import monotonic

from aboard.sandbox import Host, Sandbox
from figures import Figures

EXAMPLE = Path(__file__).parents[1] / "examples" / "finetune"
JOB = "job"
HOSTS, FEWER, MORE = 4, 2, 6
# The first part on four hosts, then one more step on others.
SAVED, RESUMED = 2, 3
TIMEOUT = 900.0
# Ranks share two cores: threads that spin for each other would take minutes.
ENV = {"OMP_NUM_THREADS": "1"}


def measure_checkpoints(figures: Figures) -> None:
    """Compares exports bit by bit, and the consumed samples of each resume with those of one process."""
    with Sandbox.up(f"bench-checkpoints-{os.getpid()}", nodes=MORE, slots=1, temporary=True) as box:
        _make_example(box.head)
        apart = _train(box.head, HOSTS, "apart", SAVED)
        shared = _train(box.head, HOSTS, "/shared/together", SAVED)
        began = monotonic()
        _type(box.head, "aboard", "export", apart, "--to", "from-apart")
        seconds = monotonic() - began
        _type(box.head, "aboard", "export", shared, "--to", "from-shared")
        figures.add("export of 4 hosts' own disks", seconds, 120, unit="s", note="a tiny model: mostly torch's import")
        figures.add("files that differ from a shared disk's export", float(_count_differing_files(box.head)), 0)
        _train(box.head, 0, "alone", RESUMED)
        expected = _read_progress(box.head, "alone", RESUMED)
        for count in (FEWER, MORE):
            out = f"to-{count}"
            _train(box.head, HOSTS, out, SAVED)
            began = monotonic()
            _train(box.head, count, out, RESUMED)
            found = _read_progress(box.nodes[0], out, RESUMED)
            name = f"{HOSTS} hosts → {count}: progress that differs from one process"
            figures.add(name, float(found != expected), 0, note=f"{monotonic() - began:.0f} s")


def _make_example(head: Host) -> None:
    for name in ("make_data.py", "make_model.py", "aboard.yaml"):
        text = (EXAMPLE / name).read_text("utf-8")
        assert head.run(["sh", "-c", f"mkdir -p ~/{JOB} && cat > ~/{JOB}/{name}"], input=text).returncode == 0
    for name in ("make_data.py", "make_model.py"):
        _type(head, sys.executable, name)


def _train(head: Host, hosts: int, out: str, steps: int) -> str:
    """Trains up to this step, saving at its end, and returns the run's name; with 0 hosts, in one process."""
    nodes = [f"n[1-{hosts}]"] if hosts else []
    settings = {
        "cluster.python": sys.executable,
        "train.output_dir": out,
        "train.max_steps": steps,
        "train.sharding": "full",
        "train.eval_steps": "null",
        "train.save_steps": "null",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    lines = _type(head, "aboard", "train", *nodes, *words).splitlines()
    return next(line for line in lines if line.startswith("run ")).split()[1].rstrip(":")


def _count_differing_files(head: Host) -> int:
    """Files that only one of both exports has, or that differ in a byte."""
    done = head.run(["sh", "-c", f"cd ~/{JOB} && diff -rq from-apart from-shared"])
    return len(done.stdout.splitlines()) if done.returncode in (0, 1) else 1000


def _read_progress(host: Host, out: str, step: int) -> object:
    """The cursor, and the chained hash of all samples consumed so far."""
    text = host.run(["sh", "-c", f"cat ~/{JOB}/{out}/step-{step:06d}/manifest.json"]).stdout
    return json.loads(text)["progress"] if text else None


def _type(head: Host, *argv: str) -> str:
    home = head.run(["sh", "-c", "echo $HOME"]).stdout.strip()
    done = head.run(list(argv), cwd=f"{home}/{JOB}", env=ENV, timeout=TIMEOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-2000:]}")
    return done.stdout
