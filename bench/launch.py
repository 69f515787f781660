"""Time from the command to the first all-reduce on sandbox hosts: Aboard with its quick check against other launchers.

All launchers take turns in one run: (a) torchrun started over ssh on all hosts at once, (b) DeepSpeed's launcher over
pdsh, (c) the lower limit, plain parallel ssh with the environment set by hand. --quick compares with (a) only.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from aboard.sandbox import Host, Sandbox
from figures import Figures, main

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
FOLDER = "/shared/job"
PORT = 29555
SCRIPT = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
done = time.time()
assert int(total) == dist.get_world_size() == int(os.environ["WORLD_SIZE"])
if dist.get_rank() == 0:
    with open("done.part", "w") as file:
        file.write(f"{done} {dist.get_world_size()}")
    os.rename("done.part", "done")
dist.destroy_process_group()
"""
TIMEOUT = 180.0
# With fewer hosts, start-up dominates.
BARRED_FROM = 4


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures the time from the command to the first all-reduce against other launchers."""
    sizes: dict[int, dict[str, float]] = {}
    for nodes in (2, 4) if quick else (2, 4, 8, 16):
        rounds = 2 if quick else 5 if nodes <= 8 else 3
        with Sandbox.up(f"bench-launch-{os.getpid()}-{nodes}", nodes=nodes, slots=1, temporary=True) as box:
            sizes[nodes] = _compare_launchers(figures, box, nodes, rounds, quick=quick)
    few, many = sizes[BARRED_FROM], sizes[max(sizes)]
    if not quick:
        growth = _compute_ratio(many, "ssh") / _compute_ratio(few, "ssh")
        figures.add(f"growth from {BARRED_FROM} to {max(sizes)} hosts / growth of plain ssh", growth, 1.1, unit="×")


def _compare_launchers(figures: Figures, box: Sandbox, nodes: int, rounds: int, *, quick: bool) -> dict[str, float]:
    head = box.head
    _write_file(head, "job.py", SCRIPT)
    _write_file(head, "aboard.yaml", f"cluster:\n  python: {PYTHON}\n  nodes: ['n[1-{nodes}] slots=1']\n")
    head.run(["aboard", "allow"], cwd=FOLDER).check_returncode()
    _write_file(head, "hostfile", "".join(f"n{number} slots=1\n" for number in range(1, nodes + 1)))
    address = box.host("n1").address
    ways: dict[str, Callable[[], list[str]]] = {
        "aboard": lambda: ["aboard", "launch", "--", "job.py"],
        "torchrun": lambda: _build_ssh_command(nodes, lambda rank: _build_torchrun_command(nodes, rank, address)),
    }
    if not quick:
        ways["ssh"] = lambda: _build_ssh_command(nodes, lambda rank: _build_plain_command(nodes, rank, address))
        ways["deepspeed"] = lambda: _build_deepspeed_command(address)
    took: dict[str, list[float]] = {name: [] for name in ways}
    began: list[float] = []
    for number in range(rounds):
        for name, command in ways.items():
            # It is by far the slowest: one round is enough.
            if name != "deepspeed" or number == 0:
                if name == "aboard":
                    began.append(time.time())
                took[name].append(_time_launch(head, command(), nodes))
    print(f"    aboard's timeline at {nodes} hosts: {_read_profile(head, began[-1])}", flush=True)
    middle = {name: statistics.median(seconds) for name, seconds in took.items()}
    said = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in middle.items())
    if nodes < BARRED_FROM:
        print(f"at {nodes} hosts, for comparison: {said}", flush=True)
        return middle
    note = f"{said}; median of {rounds}"
    figures.add(
        f"aboard / torchrun over ssh, {nodes} hosts", _compute_ratio(middle, "torchrun"), 1.0, unit="×", note=note
    )
    if not quick:
        figures.add(f"aboard / plain parallel ssh, {nodes} hosts", _compute_ratio(middle, "ssh"), 1.15, unit="×")
        figures.add(f"aboard / deepspeed over pdsh, {nodes} hosts", _compute_ratio(middle, "deepspeed"), 1.0, unit="×")
    return middle


def _read_profile(head: Host, began: float) -> str:
    """The timeline of the last run from its record: program loaded, nodes checked, sessions open, phases of ranks."""
    newest = "cd ~/.local/state/aboard/runs && cd $(ls -t | head -1)"
    loaded = float(head.run(["sh", "-c", f"{newest} && stat -c %.Y began"]).stdout)
    events = [json.loads(line) for line in head.run(["sh", "-c", f"{newest} && cat events.jsonl"]).stdout.splitlines()]
    moments = {"loaded": loaded}
    for name, kind, phase in (
        ("checked", "generation", None),
        ("sessions open", "held", None),
        ("started", "started", None),
        ("torch imported", "phase", "torch"),
        ("first all-reduce", "phase", "collective"),
    ):
        moments[name] = max(
            event["at"] for event in events if event["kind"] == kind and event["data"].get("phase") in {None, phase}
        )
    return ", ".join(f"{name} {at - began:.2f} s" for name, at in moments.items())


def _compute_ratio(seconds: dict[str, float], peer: str) -> float:
    return seconds["aboard"] / seconds[peer]


def _write_file(head: Host, name: str, text: str) -> None:
    done = head.run(["sh", "-c", f"mkdir -p {FOLDER} && cat > {FOLDER}/{name}"], input=text)
    assert done.returncode == 0, done.stderr


def _build_ssh_command(nodes: int, command: Callable[[int], str]) -> list[str]:
    """All hosts at once, as an experienced user would type it."""
    lines = [f"ssh -o BatchMode=yes n{rank + 1} '{command(rank)}' &" for rank in range(nodes)]
    return ["sh", "-c", "\n".join([*lines, "wait"])]


def _build_torchrun_command(nodes: int, rank: int, address: str) -> str:
    where = f"--nnodes {nodes} --node-rank {rank} --nproc-per-node 1 --master-addr {address} --master-port {PORT}"
    return f"cd {FOLDER} && GLOO_SOCKET_IFNAME=eth0 {PYTHON} -m torch.distributed.run {where} job.py"


def _build_plain_command(nodes: int, rank: int, address: str) -> str:
    env = f"RANK={rank} WORLD_SIZE={nodes} LOCAL_RANK=0 MASTER_ADDR={address} MASTER_PORT={PORT}"
    return f"cd {FOLDER} && OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 {env} {PYTHON} job.py"


def _build_deepspeed_command(address: str) -> list[str]:
    where = f"--hostfile hostfile --master_addr {address} --master_port {PORT} --no_local_rank"
    line = f"DS_ACCELERATOR=cpu GLOO_SOCKET_IFNAME=eth0 {PYTHON} -m deepspeed.launcher.runner {where} job.py"
    return ["sh", "-c", line]


def _time_launch(head: Host, argv: list[str], nodes: int) -> float:
    """Seconds from the command to the first all-reduce of rank 0; waits for the rest of the run."""
    head.run(["rm", "-f", f"{FOLDER}/done"])
    began = time.time()
    try:
        done = head.run(argv, cwd=FOLDER, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        sys.exit(f"{argv} is still running after {TIMEOUT:g} s")
    told = head.run(["cat", f"{FOLDER}/done"]).stdout.split()
    if done.returncode != 0 or len(told) != 2 or int(told[1]) != nodes:
        sys.exit(f"{argv} failed with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return float(told[0]) - began


if __name__ == "__main__":
    main("launch", measure)
