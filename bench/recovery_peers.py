"""Other launchers on the same hosts, with the same model and the same kill: torchrun, ft_launcher, torchft."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recovery_stage import FOLDER, PATIENCE, Recovered, Stage, kill, read_proc

NVRX = ("nvidia-resiliency-ext==0.4.1", "defusedxml", "psutil", "nvidia-ml-py", "pynvml")
TORCHFT = (
    *("torchft-nightly==2026.10.26", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-semantic-conventions"),
    *("opentelemetry-exporter-otlp-proto-http", "opentelemetry-exporter-otlp-proto-common", "opentelemetry-proto"),
    *("googleapis-common-protos", "protobuf"),
)


def recover_peer(stage: Stage, name: str, number: int, nvrx: str) -> Recovered:
    """The same for a launcher with an agent on each host; what it detects when, it does not say."""
    out = f"{name}-{number}"
    stage.put(f"{out}/steps.jsonl", "")
    module = {"torchrun": "torch.distributed.run", "ft_launcher": "nvidia_resiliency_ext.fault_tolerance.launcher"}
    argv = [
        *("env", f"PYTHONPATH={nvrx if name == 'ft_launcher' else ''}", sys.executable, "-m", module[name]),
        *("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{29400 + number}"),
        *("--max-restarts=5", f"{FOLDER}/recovery_peer.py", f"{FOLDER}/model", f"{FOLDER}/{out}"),
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


def recover_torchft(stage: Stage, number: int, packages: str) -> tuple[Recovered, float]:
    """A group of one rank on each host; also the seconds until the other one's next step, on its own."""
    out = f"torchft-{number}"
    stage.put(f"{out}/n1.jsonl", "")
    first, second = stage.box.host("n1"), stage.box.host("n2")
    python = ("env", f"PYTHONPATH={packages}", "TORCHFT_LIGHTHOUSE=http://n1:29510", sys.executable)
    # As in torchft's README.
    options = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
    argv = (
        *(*python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=c10d"),
        *("--rdzv-endpoint=localhost:0", "--max-restarts=5"),
        *(f"{FOLDER}/torchft_peer.py", f"{FOLDER}/model", f"{FOLDER}/{out}"),
    )

    def read_steps(host: str) -> list[dict[str, Any]]:
        return stage.read_lines(f"{out}/{host}.jsonl")

    began = time.time()
    lighthouse = (*python, f"{packages}/bin/torchft_lighthouse", *options)
    try:
        with stage.run(*lighthouse, host=first), stage.run(*argv, host=first) as one, stage.run(*argv, host=second):

            def find_step(groups: int, after: float, without: int = 0) -> float:
                """The first step of this many groups after a time; of n2's, those of another process than that one."""
                lines = read_steps("n2" if groups == 2 else "n1")
                found = (each for each in lines if each["time"] > after and each["pid"] != without)
                return next((float(each["time"]) for each in found if each["groups"] == groups), 0.0)

            cold = one.wait("the first step", lambda: find_step(2, began), PATIENCE) - began
            one.wait("20 steps", lambda: len(read_steps("n2")) > 20, PATIENCE)
            old = read_steps("n2")[-1]["pid"]
            failed = kill(stage.find_rank(second))
            alone = one.wait("a step of the other group", lambda: find_step(1, failed), PATIENCE) - failed
            total = one.wait("a step of both", lambda: find_step(2, failed, old), PATIENCE) - failed
    finally:
        for host in (first, second):
            while pid := stage.find_rank(host):
                kill(pid)
        for pid in first.pids():
            if b"torchft_lighthouse" in read_proc(pid, "cmdline"):
                kill(pid)
    return Recovered(cold=cold, detection=0.0, total=total), alone


@contextmanager
def report_peer_failure(name: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        print(f"    {name}: not within {PATIENCE:g} s: {error}", flush=True)


def install(name: str, packages: tuple[str, ...]) -> str:
    """The directory of a peer's packages, which the hosts see as well; "" if they can't be installed."""
    folder = Path(sys.prefix) / packages[0].replace("==", "-")
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{name}: not tested, since it can't be installed: {done.stderr.strip()[-500:]}", flush=True)
            return ""
    return str(folder)
