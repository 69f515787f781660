"""Simulated GPUs: the CPU build of torch, with "cuda" devices that compute on the CPU.

They show control flow, the memory that tensors take, errors of mixed devices, and each time the host waits for the
device. They can't show kernels, speed, the real NCCL, the context's memory or the allocator's fragmentation. Attention
takes the maths path, since fused kernels are the GPU's own, and nothing is compiled, since Triton is missing.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deadlines import slowness

HERE = Path(__file__).parent
DEVICE, DRIVER = "simulated_gpus_device.so", "libcuda.so.1"


class SimulatedRun(NamedTuple):
    """The log of waits: which rank, which thread, what for, and our frames around it, the inner ones first."""

    waits: list[dict[str, Any]]
    output: str


def build() -> Path:
    """The directory with the built libraries, beside the environment; g++ takes a minute of CPU, once."""
    folder = Path(sys.prefix) / "simulated_gpus"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        import torch  # noqa: PLC0415 - who only imports this module needs none

        home = Path(torch.__file__).parent
        sources = [HERE / "device.cpp", HERE / "libcuda.c"]
        key = hashlib.sha256(
            b"".join([torch.__version__.encode(), *(each.read_bytes() for each in sources)])
        ).hexdigest()
        stamp = folder / "built"
        if not stamp.is_file() or stamp.read_text() != key:
            includes = [home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
            defines = ("USE_C10D_GLOO", "USE_DISTRIBUTED", "TORCH_API_INCLUDE_EXTENSION_H")
            shared = ("-fPIC", "-shared", "-o")
            subprocess.run(
                [
                    *(
                        "g++",
                        "-O1",
                        "-std=c++20",
                        "-w",
                        "-D_GLIBCXX_USE_CXX11_ABI=1",
                        *(f"-D{name}" for name in defines),
                    ),
                    *(f"-I{include}" for include in includes),
                    *(*shared, folder / DEVICE, HERE / "device.cpp", f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}"),
                    *("-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
                ],
                check=True,
            )
            subprocess.run(["g++", "-x", "c", *shared, folder / DRIVER, HERE / "libcuda.c"], check=True)
            stamp.write_text(key)
    return folder


def environment(count: int = 2, *, waits: Path | None = None, **more: str) -> dict[str, str]:
    """The variables that give a Python and its children so many GPUs; `waits` is the file for the log of waits."""
    folder = build()
    return {
        "SIMULATED_GPUS": str(count),
        "SIMULATED_GPUS_LIBRARIES": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE / "startup"), os.environ.get("PYTHONPATH")])),
        **({"SIMULATED_GPUS_WAITS": str(waits)} if waits else {}),
        **more,
    }


def train(
    folder: Path,
    training: Mapping[str, Any],
    *,
    nodes: int,
    ranks: int,
    kill_at: int | None = None,
    patience: float = 240.0,
    **more: str,
) -> SimulatedRun:
    """Trains on `nodes` × `ranks` simulated GPUs: one process imports torch, and all ranks are its forks.

    With `kill_at`, the last rank is killed when it begins that step; `more` are variables.
    """
    waits = folder / "waits.jsonl"
    argv: Sequence[str] = (sys.executable, str(HERE / "run_ranks.py"), json.dumps([nodes, ranks, training, kill_at]))
    variables = {**os.environ, **environment(ranks, waits=waits), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        argv, env=variables, capture_output=True, text=True, timeout=patience * slowness(), check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    lines = waits.read_text().splitlines() if waits.exists() else []
    return SimulatedRun(waits=[json.loads(line) for line in lines], output=output)


def measure_saved(trainings: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """For each training the attention that was chosen, and the bytes that its forward keeps: told, and measured."""
    argv = (sys.executable, str(HERE / "measure_saved.py"), json.dumps(trainings))
    variables = {**os.environ, **environment(2), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]
