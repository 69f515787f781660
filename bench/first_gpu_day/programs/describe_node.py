"""Reports what a node is: its GPUs, their links, its versions, and which tools a first day could use. Reads only."""

import contextlib
import importlib.metadata
import json
import shutil
import subprocess

# Raw outputs for the bundle, each with its own limit of lines.
COMMANDS = {
    "nvidia-smi": ["nvidia-smi"],
    "nvidia-smi -q": ["nvidia-smi", "-q"],
    "nvidia-smi topo -m": ["nvidia-smi", "topo", "-m"],
    "nvidia-smi nvlink --status": ["nvidia-smi", "nvlink", "--status"],
    "ibstat": ["ibstat"],
    "ip -br address": ["ip", "-br", "address"],
    "dcgmi discovery -l": ["dcgmi", "discovery", "-l"],
    "uname -a": ["uname", "-a"],
}
QUERY = ["nvidia-smi", "--query-gpu=memory.total,compute_cap,memory.free", "--format=csv,noheader,nounits"]
MOST_LINES = 4000
TOOLS = ("all_reduce_perf", "dcgmi", "ibstat", "mpirun")
PACKAGES = ("torch", "transformers", "flash_attn", "torchtitan", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton")


def report(**values):
    print("first-gpu-day " + json.dumps(values), flush=True)


def run(argv):
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "no reply within 60 s"
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def find_versions():
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


for name, argv in COMMANDS.items():
    text = run(argv)
    if text is None:
        report(text=name, line=f"not run: {argv[0]} is not installed")
        continue
    for line in text.splitlines()[:MOST_LINES]:
        report(text=name, line=line[:1000])
report(memory=[line.split(",")[0].strip() for line in (run(QUERY) or "").splitlines()[:64]])
report(tools=[name for name in TOOLS if shutil.which(name)])
report(packages=dict(find_versions()))
with contextlib.suppress(ImportError):
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else ""
    report(gpus=gpus, torch=torch.__version__, cuda=torch.version.cuda or "", nccl=nccl)
