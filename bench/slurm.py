"""Slurm on sandbox hosts: the start of a job against `srun torchrun`, and agents on many nodes against ssh.

Both ways take turns in one run. `srun torchrun` is started as PyTorch's tutorial on multi-node training shows it.
"""

import os
import statistics
import sys
import time
from pathlib import Path

from aboard.sandbox import Host, Sandbox
from figures import Figures, main
from launch import SCRIPT

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
FOLDER = "/shared/job"
SOURCES = Path(__file__).parents[1] / "src"
NODES = 4
MANY_NODES = 64
TIMEOUT = 180.0

_HEADER = f"""\
#!/bin/bash
#SBATCH --nodes={NODES} --ntasks-per-node=1 --exclusive --no-kill
#SBATCH --chdir={FOLDER} --output={FOLDER}/out
date +%s.%N > began
"""
WAYS = {
    "aboard": f"{_HEADER}exec aboard launch --set cluster.python={PYTHON} -- job.py\n",
    "torchrun": f"""{_HEADER}
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "${{nodes[0]}}" hostname --ip-address)
export GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
srun {PYTHON} -m torch.distributed.run --nnodes {NODES} --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d \\
    --rdzv_endpoint $head_node_ip:29500 job.py
""",
}
# Dials all nodes by both transports, in turn; one line of seconds for each.
ATTACH = """
import asyncio, sys, time
from aboard.core.cluster.node import Node, TransportKind
from aboard.transport.node_dialer import NodeDialer

async def attach(kind, count):
    dialer = NodeDialer()
    began = time.monotonic()
    nodes = [Node(name=f"n{number}", transport=kind) for number in range(1, count + 1)]
    results = await asyncio.gather(*map(dialer.dial, nodes))
    seconds = time.monotonic() - began
    await asyncio.gather(*(result.link.close() for result in results))
    return seconds

for _ in range(int(sys.argv[2])):
    for kind in (TransportKind.SLURM, TransportKind.SSH):
        print(kind.value, asyncio.run(attach(kind, int(sys.argv[1]))), flush=True)
"""


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures a job's start against srun torchrun, and agents on many nodes against ssh."""
    measure_start(figures, quick)
    measure_attach(figures, quick)


def measure_start(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """From the first line of the batch script to the first all-reduce."""
    rounds = 2 if quick else 5
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    with Sandbox.up(f"bench-slurm-{os.getpid()}", nodes=NODES, slots=1, slurm=True, temporary=True) as box:
        _write_file(box.head, "job.py", SCRIPT)
        for _ in range(rounds):
            for name, script in WAYS.items():
                took[name].append(_time_job(box.head, script))
    middle = {name: statistics.median(seconds) for name, seconds in took.items()}
    note = f"aboard {middle['aboard']:.1f} s, srun torchrun {middle['torchrun']:.1f} s; median of {rounds}"
    name = f"batch start to first all-reduce, {NODES} nodes / srun torchrun"
    figures.add(name, middle["aboard"] / middle["torchrun"], 1.0, unit="×", note=note)


def measure_attach(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Agents attached on many nodes of one job, against the same nodes over ssh."""
    rounds = 1 if quick else 5
    box_name = f"bench-slurm-{os.getpid()}-many"
    with Sandbox.up(box_name, nodes=MANY_NODES, slots=1, slurm=True, temporary=True) as box:
        _write_file(box.head, "attach.py", ATTACH)
        command = ["env", f"PYTHONPATH={SOURCES}", PYTHON, "attach.py", str(MANY_NODES), str(rounds)]
        done = box.head.run(["salloc", "--quiet", f"--nodes={MANY_NODES}", *command], cwd=FOLDER, timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr
    took: dict[str, list[float]] = {"slurm": [], "ssh": []}
    for line in done.stdout.splitlines():
        name, seconds = line.split()
        took[name].append(float(seconds))
    middle = {name: statistics.median(seconds) for name, seconds in took.items()}
    note = f"srun {middle['slurm']:.1f} s, ssh {middle['ssh']:.1f} s; median of {rounds}"
    figures.add(
        f"agents on {MANY_NODES} nodes by srun / by ssh", middle["slurm"] / middle["ssh"], 1.2, unit="×", note=note
    )


def _time_job(head: Host, script: str) -> float:
    head.run(["rm", "-f", f"{FOLDER}/done", f"{FOLDER}/began"])
    done = head.run(["sbatch", "--wait"], input=script, timeout=TIMEOUT)
    told = head.run(["cat", f"{FOLDER}/done"]).stdout.split()
    if done.returncode != 0 or len(told) != 2 or int(told[1]) != NODES:
        sys.exit(f"{script}\nfailed with {done.returncode}: {head.run(['cat', f'{FOLDER}/out']).stdout[-3000:]}")
    began = float(head.run(["cat", f"{FOLDER}/began"]).stdout)
    _wait_for_idle_nodes(head)
    return float(told[0]) - began


def _wait_for_idle_nodes(head: Host) -> None:
    """The next job must not wait for the last one's nodes."""
    deadline = time.monotonic() + TIMEOUT
    while head.run(["squeue", "--noheader"]).stdout.strip():
        assert time.monotonic() < deadline, "the last job does not end"
        time.sleep(0.2)


def _write_file(head: Host, name: str, text: str) -> None:
    done = head.run(["sh", "-c", f"mkdir -p {FOLDER} && cat > {FOLDER}/{name}"], input=text)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main("slurm", measure, {"start": measure_start, "attach": measure_attach})
