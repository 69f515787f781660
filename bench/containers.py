"""The start of ranks in containers on one sandbox host, against the same ranks outside.

The ways take turns in one run. Apptainer unpacks the image once per node; that time is measured and subtracted.
"""

import json
import os
import statistics
import sys
import time

from aboard.sandbox import Host, Sandbox
from figures import Figures, main
from launch import SCRIPT

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
FOLDER = "/shared/job"
RUNS = "~/.local/state/aboard/runs"
RANKS = 4
TIMEOUT = 180.0
LIMIT = 1.5
OUTSIDE = "outside"
WAYS = {
    OUTSIDE: f"python: {PYTHON}",
    "apptainer": "container: {runtime: apptainer, image: /opt/images/train.sif}",
    "podman": "container: {runtime: podman, image: train}",
}


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures the time from the command to the first all-reduce in each runtime, without one unpack."""
    rounds = 2 if quick else 5
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    unpacks: list[float] = []
    with Sandbox.up(f"bench-containers-{os.getpid()}", nodes=1, slots=RANKS, containers=True, temporary=True) as box:
        _write_file(box.head, "job.py", SCRIPT)
        for _ in range(rounds):
            for way, setting in WAYS.items():
                _write_file(box.head, "aboard.yaml", f"cluster:\n  nodes: [n1 slots={RANKS}]\n  {setting}\n")
                box.head.run(["aboard", "allow"], cwd=FOLDER).check_returncode()
                seconds, unpack = _time_launch(box.head)
                took[way].append(seconds - unpack)
                unpacks += [unpack] if unpack else []
    middle = {way: statistics.median(seconds) for way, seconds in took.items()}
    for way in [way for way in WAYS if way != OUTSIDE]:
        note = f"{middle[way]:.1f} s, outside {middle[OUTSIDE]:.1f} s; median of {rounds}"
        if way == "apptainer":
            note += f"; without one unpack of {statistics.median(unpacks):.2f} s"
        name = f"start to first all-reduce, {RANKS} ranks in {way} / outside"
        figures.add(name, middle[way] / middle[OUTSIDE], LIMIT, unit="×", note=note)


def _time_launch(head: Host) -> tuple[float, float]:
    """Seconds from the command to the first all-reduce, and those of them that the unpack took."""
    head.run(["rm", "-f", f"{FOLDER}/done"])
    began = time.time()
    done = head.run(["aboard", "launch", "--check", "none", "--", "job.py"], cwd=FOLDER, timeout=TIMEOUT)
    told = head.run(["cat", f"{FOLDER}/done"]).stdout.split()
    if done.returncode != 0 or len(told) != 2 or int(told[1]) != RANKS:
        sys.exit(f"failed with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    newest = head.run(["sh", "-c", f"cat {RUNS}/$(ls -t {RUNS} | head -n 1)/events.jsonl"]).stdout
    at: dict[str, float] = {}
    for event in map(json.loads, newest.splitlines()):
        at.setdefault(event["kind"], event["at"])
    return float(told[0]) - began, at["started"] - at["unpacking"] if "unpacking" in at else 0.0


def _write_file(head: Host, name: str, text: str) -> None:
    done = head.run(["sh", "-c", f"mkdir -p {FOLDER} && cat > {FOLDER}/{name}"], input=text)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main("containers", measure)
