"""Recognises the command of a process that starts ranks on its own node; also sent to a script's own Pythons.

Any Python from 3.6 on runs it.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What starts ranks on its own node, with the command that it needs for that.
LAUNCH_PROGRAMS = {
    "torchrun": (), "deepspeed": (), "ds": (), "accelerate": ("launch",), "accelerate-launch": (),
}  # fmt: skip
LAUNCH_MODULES = {
    "torch.distributed.run": (), "torch.distributed.launch": (),
    "accelerate.commands.launch": (), "accelerate.commands.accelerate_cli": ("launch",),
    "deepspeed.launcher.runner": (), "deepspeed.launcher.launch": (),
}  # fmt: skip
HELP = ("-h", "--help", "--version")
# They start a command on other nodes, or several times.
MPI_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
STARTERS = ("ssh", "pdsh", "clush", *MPI_PROGRAMS)
# Behind one of these, a launcher's name starts nothing.
OBSERVERS = ("pgrep", "pkill", "killall", "grep", "which", "echo", "pip", "ls", "cat", "tail")


def find_launch(words: "Sequence[str]") -> "list[str]":
    """The command of a process that is a launcher, from the launcher's name on; [] for any other process.

    Exact: a run may be stopped because of it. `accelerate config` and `torchrun --help` start nothing.
    """
    is_module, program = split_python(words)
    if not program:
        return []
    name = program[0] if is_module else os.path.basename(program[0])
    command = (LAUNCH_MODULES if is_module else LAUNCH_PROGRAMS).get(name)
    rest = list(program[1:])
    if command is None or rest[: len(command)] != list(command):
        return []
    if not rest[len(command) :] or any(word in HELP for word in rest[len(command) : len(command) + 1]):
        return []
    return (["python", "-m", name] if is_module else [name]) + rest


def find_start_elsewhere(words: "Sequence[str]") -> "list[str]":
    """The whole command if ssh, pdsh or mpirun would start a launcher, or mpirun a Python program; else []."""
    import re  # noqa: PLC0415 - not every Python of a script pays for it

    name = os.path.basename(words[0])
    if name not in STARTERS:
        return []
    for command in re.split("[;&|\n(){}]", " ".join(words[1:])):
        parts = re.split("[\\s'\"`]+", command)
        for at, part in enumerate(parts):
            if part in OBSERVERS:
                break
            is_python = os.path.basename(part).startswith("python") or part.endswith(".py")
            if find_launch(parts[at:]) or (name in MPI_PROGRAMS and is_python):
                return [name, *words[1:]]
    return []


def split_python(words: "Sequence[str]") -> "tuple[bool, Sequence[str]]":
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
