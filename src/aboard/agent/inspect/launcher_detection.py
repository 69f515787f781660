"""Recognises other launchers by their command lines, and reads their rendezvous settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from aboard.agent.inspect.launch_command import split_python

MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic", "accelerate.commands",
    "deepspeed.launcher",
)  # fmt: skip
PROGRAMS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "srun", "mpirun", "mpiexec", "pdsh")
# Launchers with a rendezvous of their own, before any rank starts.
RENDEZVOUS_LAUNCHERS = (
    "torch.distributed.run", "torch.distributed.launch", "torchrun", "accelerate", "accelerate-launch",
)  # fmt: skip
# Option names without dashes; the first occurrence counts, since the script's own arguments come later.
OPTIONS = {
    "nnodes": "nodes", "num_machines": "nodes",
    "node_rank": "number", "machine_rank": "number",
    "master_addr": "address", "main_process_ip": "address",
    "master_port": "port", "main_process_port": "port",
    "rdzv_endpoint": "place",
}  # fmt: skip
# torchrun takes each of its options from such a variable too.
VARIABLES = {
    "PET_NNODES": "nodes", "PET_NODE_RANK": "number", "PET_MASTER_ADDR": "address", "PET_MASTER_PORT": "port",
    "PET_RDZV_ENDPOINT": "place",
}  # fmt: skip
# torchrun's defaults.
PORT, ADDRESS = "29500", "127.0.0.1"


def detect_launcher(words: Sequence[str]) -> str:
    """Which launcher a command line is, as `torchrun`; "" for any other program."""
    module, program = split_python(words)
    first = program[0] if program else ""
    known = first.startswith(MODULES) if module else os.path.basename(first) in PROGRAMS
    return os.path.basename(first) if known else ""


def parse_rendezvous(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Its rendezvous address, node rank and number of nodes; reads no other argument."""
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.lstrip("-").partition("=")
        field = OPTIONS.get(name.replace("-", "_"))
        if word.startswith("-") and field and field not in options:
            options[field] = value if equals else following
    for name, field in VARIABLES.items():
        if name in env:
            options.setdefault(field, env[name])
    host, _, port = options.pop("place", "").rpartition(":")
    if host:
        options.setdefault("address", host.strip("[]"))
        options.setdefault("port", port)
    options["nodes"] = options.get("nodes", "1").partition(":")[0]
    options.setdefault("address", ADDRESS)
    options.setdefault("port", PORT)
    return options
