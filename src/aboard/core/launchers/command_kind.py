"""Decides how a typed command is launched, before anything runs: read here, run on a node, or run as each rank."""

import re
from collections.abc import Sequence
from enum import Enum

from aboard.core.launchers.containers.container_fields import RUNTIMES
from aboard.core.launchers.launcher_command import ABOARD_LAUNCH
from aboard.core.launchers.parse_command import is_launcher, split_assignments
from aboard.core.launchers.slurm.srun import NAME as SRUN, SLURM_COMMANDS, find_step_command
from aboard.core.launchers.wrapped_commands import (
    ENVIRONMENT_MANAGERS,
    SHELLS,
    STARTERS,
    build_starter_refusal,
    build_wrapper_refusal,
    find_command_text,
    find_front_end,
    find_script,
    find_text_launcher,
    get_base_name,
    may_be_refused,
    strip_wrapper,
)
from aboard.core.plan.program import Program, ProgramKind
from aboard.diagnoses import InputError

_MAKE = frozenset({"make", "gmake"})
_STARTED = re.compile(r"\.(sh|bash)\b|\bg?make\b")
# A node runs these around a script, which then sees what they change. What others do would not reach the ranks.
_KEPT_WRAPPERS = ENVIRONMENT_MANAGERS | {"env"}


class CommandKind(Enum):
    """What happens to a command.

    `PARSED`: the head reads it, and runs nothing; if `parse_launcher_command` returns None, it is a rank's. `CAPTURED`:
    a node runs it, and the launcher that it calls is replaced. `RANK`: each rank runs it.
    """

    PARSED = "parsed"
    CAPTURED = "captured"
    RANK = "rank"


def choose_kind(
    words: Sequence[str],
    capture: bool | None,  # noqa: FBT001 - the options --capture and --no-capture; None if neither is given
    *,
    in_job: bool = False,
    launch: tuple[str, ...] = ABOARD_LAUNCH,
) -> CommandKind:
    """Chooses by the words alone; refuses what would be lost around a script, with what to type.

    In a Slurm job, the script of sbatch runs, and what an srun starts by a shell or a front end. `launch` are the words
    that the user typed before `--`, for that refusal.
    """
    before, command = split_assignments(words)
    if not command:
        return CommandKind.RANK
    if capture or (in_job and _runs_script(command)):
        return CommandKind.CAPTURED
    wrappers, inner = _unwrap(command)
    if capture is False and not is_script(inner):
        return CommandKind.PARSED if _is_read(command) else CommandKind.RANK
    if capture is False:
        return CommandKind.RANK
    if is_script(inner) or (ENVIRONMENT_MANAGERS & set(wrappers) and _is_captured_launcher(inner)):
        _refuse_lost_wrapper(command, [f"{name}={value}" for name, value in before.items()], launch)
        return CommandKind.CAPTURED
    return CommandKind.PARSED if _is_read(command) else CommandKind.RANK


def is_script(words: Sequence[str]) -> bool:
    """Whether the command may call a launcher later: a shell script, make, or a front end.

    The text of `bash -c` must start one of these, or a launcher; otherwise it is what each rank runs.
    """
    name = get_base_name(words[0])
    text = find_command_text(words)
    if text is not None:
        return bool(find_text_launcher(text)) or _STARTED.search(text) is not None
    is_shell = name in SHELLS and len(words) > 1
    return is_shell or name in _MAKE or find_script(words) is not None or bool(find_front_end(words))


def _runs_script(command: Sequence[str]) -> bool:
    """Whether it is an sbatch, or an srun whose tasks run a script or a front end."""
    name = get_base_name(command[0])
    if name != SRUN:
        return name in SLURM_COMMANDS
    try:
        task = split_assignments(find_step_command(command[1:]))[1]
    except InputError:
        return False  # it is read, and refused with its reason
    return bool(task) and is_script(task)


def uses_front_end(words: Sequence[str]) -> bool:
    """Whether the command is a front end's (`llamafactory-cli train`), behind variables and wrappers."""
    command = split_assignments(words)[1]
    return bool(command) and bool(find_front_end(_unwrap(command)[1]))


def build_script_program(words: Sequence[str]) -> Program:
    """The script that the command runs, or its program: what each node must have."""
    inner = _unwrap(split_assignments(words)[1])[1]
    script = find_script(inner)
    return Program(kind=ProgramKind.PROGRAM if script is None else ProgramKind.SCRIPT, target=script or inner[0])


def build_script_env(
    node_rank: int, nodes: int, ranks: int, master_address: str, master_port: int, *, front_end: bool
) -> dict[str, str]:
    """The variables of a script on a node, by the names that scripts and front ends read."""
    env = {
        "NNODES": str(nodes),
        "NODE_RANK": str(node_rank),
        "NPROC_PER_NODE": str(ranks),
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port),
    }
    # Without it, llamafactory-cli starts no launcher for a single GPU.
    return env | {"FORCE_TORCHRUN": "1"} if front_end else env


def _unwrap(words: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """The names of the wrappers around a command, from the outermost, and the command."""
    wrappers = []
    while inner := _strip_one(words):
        wrappers.append(get_base_name(words[0]))
        words = inner
    return wrappers, words


def _strip_one(words: Sequence[str]) -> Sequence[str]:
    """The command in a wrapper, also in sudo and the like if it is a script; empty for any other."""
    if get_base_name(words[0]) in STARTERS:
        return next((words[at:] for at in range(1, len(words)) if is_script(words[at:])), ())
    return split_assignments(strip_wrapper(words))[1]


def _refuse_lost_wrapper(command: Sequence[str], before: Sequence[str], launch: tuple[str, ...]) -> None:
    words = command
    while inner := _strip_one(words):
        name = get_base_name(words[0])
        kept = command[: len(command) - len(words)]
        if name in STARTERS:
            seen = f"{name} would hide the launcher from Aboard, which reaches the nodes itself"
            raise build_starter_refusal(name, [*before, *kept, *inner], seen, launch)
        if name not in _KEPT_WRAPPERS:
            seen = f"{name} would act on {get_base_name(inner[0])} only, and not on the ranks"
            raise build_wrapper_refusal(words, inner, [*before, *kept], seen, launch)
        words = inner


def _is_captured_launcher(words: Sequence[str]) -> bool:
    return is_launcher(words) and get_base_name(words[0]) not in {*RUNTIMES, *SLURM_COMMANDS}


def _is_read(command: Sequence[str]) -> bool:
    return is_launcher(command) or is_script(command) or may_be_refused(get_base_name(command[0]))
