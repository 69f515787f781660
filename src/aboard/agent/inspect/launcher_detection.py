"""Recognises other launchers by their command lines, and reads their rendezvous settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic", "accelerate.commands",
    "deepspeed.launcher",
)  # fmt: skip
PROGRAMS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "srun", "mpirun", "mpiexec", "pdsh")
# What starts ranks on its own node, with the command that it needs for that.
LAUNCH_PROGRAMS: dict[str, tuple[str, ...]] = {
    "torchrun": (), "deepspeed": (), "ds": (), "accelerate": ("launch",), "accelerate-launch": (),
}  # fmt: skip
LAUNCH_MODULES: dict[str, tuple[str, ...]] = {
    "torch.distributed.run": (), "torch.distributed.launch": (),
    "accelerate.commands.launch": (), "accelerate.commands.accelerate_cli": ("launch",),
    "deepspeed.launcher.runner": (), "deepspeed.launcher.launch": (),
}  # fmt: skip
HELP = ("-h", "--help", "--version")
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
    module, program = _split_python(words)
    first = program[0] if program else ""
    known = first.startswith(MODULES) if module else os.path.basename(first) in PROGRAMS
    return os.path.basename(first) if known else ""


def find_launch(words: Sequence[str]) -> list[str]:
    """The command of a process that is a launcher, from the launcher's name on; [] for any other process.

    Exact: a run may be stopped because of it. `accelerate config` and `torchrun --help` start nothing.
    """
    module, program = _split_python(words)
    if not program:
        return []
    name = program[0] if module else os.path.basename(program[0])
    command = (LAUNCH_MODULES if module else LAUNCH_PROGRAMS).get(name)
    rest = list(program[1:])
    if command is None or rest[: len(command)] != list(command):
        return []
    if not rest[len(command) :] or any(word in HELP for word in rest[len(command) : len(command) + 1]):
        return []
    return (["python", "-m", name] if module else [name]) + rest


def _split_python(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Whether Python runs a module, and the words from the program or module on; none for `python -c`."""
    name = os.path.basename(words[0]) if words else ""
    if not name.startswith("python") or name[6:].strip("0123456789."):
        return False, words
    at = 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--check-hash-based-pycs":
            at += 1
        if word in ("-", "--") or word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter == "c":
                return False, ()
            if letter == "m":
                return True, [word[place:], *words[at:]] if word[place:] else words[at:]
            if letter in "WX":
                at += not word[place:]
                break
    return False, words[at:]


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
