"""Parses the command of another launcher, pasted after `aboard launch --`, into a launch request.

Each launcher has its own file with the table of its flags; a new launcher is one file and one line in `_BY_NAME`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.launchers.accelerate.accelerate_command import parse_accelerate
from aboard.core.launchers.containers.container_fields import RUNTIMES
from aboard.core.launchers.containers.parse_container import drop_outside_variables, parse_container
from aboard.core.launchers.deepspeed import parse_deepspeed
from aboard.core.launchers.launcher_command import ABOARD_LAUNCH, LauncherCommand, LauncherContext, LauncherFiles
from aboard.core.launchers.slurm.sbatch import parse_sbatch
from aboard.core.launchers.slurm.srun import parse_srun
from aboard.core.launchers.torchrun import parse_torch_launch, parse_torchrun
from aboard.core.launchers.wrapped_commands import get_base_name, refuse_wrapped_command, split_python
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands as diagnoses

_Reader = Callable[[Sequence[str], LauncherContext], LauncherCommand]

_BY_NAME: Mapping[str, _Reader] = {
    "deepspeed": parse_deepspeed,
    "ds": parse_deepspeed,
    "torchrun": parse_torchrun,
    "accelerate": parse_accelerate,
    "accelerate-launch": parse_accelerate,
    "srun": parse_srun,
    "sbatch": parse_sbatch,
}
_BY_MODULE: Mapping[str, _Reader] = {
    "deepspeed.launcher.runner": parse_deepspeed,
    "torch.distributed.run": parse_torchrun,
    "torch.distributed.launch": parse_torch_launch,
    "accelerate.commands.launch": parse_accelerate,
    "accelerate.commands.accelerate_cli": parse_accelerate,
}
# These need the subcommand `launch` before the flags.
_NEED_LAUNCH = frozenset({"accelerate", "accelerate.commands.accelerate_cli"})

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLOTS = re.compile(r"\d{1,4}(,\d{1,4})*")


def parse_launcher_command(
    words: Sequence[str],
    files: LauncherFiles,
    *,
    environ: Mapping[str, str] = NO_ENV,
    cwd: str = ".",
    launch: tuple[str, ...] = ABOARD_LAUNCH,
) -> LauncherCommand | None:
    """Parses a launcher's command; None if the words are a script with its arguments."""
    context = LauncherContext(files=files, environ=environ, cwd=cwd, parse_inner=_parse_words, launch=launch)
    command = _parse_words(words, context)
    return None if command is None else drop_outside_variables(command)


def _parse_words(words: Sequence[str], context: LauncherContext) -> LauncherCommand | None:
    set_before, command = split_assignments(words)
    if not command:
        return None
    if get_base_name(command[0]) in RUNTIMES:
        in_container = parse_container(command, replace(context, environ={**context.environ, **set_before}))
        return _apply_assignments(in_container, set_before)
    name, rest, reader = _find_reader(command)
    if reader is None:
        inside = replace(context, environ={**context.environ, **set_before})
        refuse_wrapped_command(command, set_before, inside, frozenset(_BY_NAME) | RUNTIMES)
        return None
    if name in _NEED_LAUNCH:
        rest = _strip_launch_word(name, rest)
    result = reader(rest, replace(context, environ={**context.environ, **set_before}))
    return _apply_assignments(_add_path_note(result, command[0]), set_before)


def is_launcher(words: Sequence[str]) -> bool:
    """Whether the words are a launcher's command, or start one in a container."""
    return get_base_name(words[0]) in RUNTIMES or _find_reader(words)[2] is not None


def _find_reader(words: Sequence[str]) -> tuple[str, Sequence[str], _Reader | None]:
    is_module, program = split_python(words)
    name, *rest = program if is_module and program else [get_base_name(words[0]), *words[1:]]
    return name, rest, _BY_MODULE.get(name) or _BY_NAME.get(name)


def split_assignments(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Splits off leading assignments (`NCCL_DEBUG=INFO torchrun …`) as a shell does, with or without `env`."""
    env: dict[str, str] = {}
    rest = list(words)
    if rest[:1] == ["env"]:
        del rest[:1]
        while rest[:1] == ["-u"]:
            # Ranks don't inherit this shell's variables.
            del rest[:2]
        if "".join(rest[:1]).startswith("-"):
            return {}, words
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        env[match[1]] = match[2]
        rest.pop(0)
    return env, rest


def _strip_launch_word(name: str, rest: Sequence[str]) -> Sequence[str]:
    if rest[:1] == ["launch"]:
        return rest[1:]
    seen = f"{name} {escape_text(rest[0]) if rest else ''}".strip() + " starts no run; use accelerate launch"
    raise InputError.of(diagnoses.SCRIPT, name, seen, "launch")


def _add_path_note(command: LauncherCommand, first: str) -> LauncherCommand:
    if "/" not in first:
        return command
    note = f"{escape_text(first)} is not run: each rank is started by its node's own Python (python: in aboard.yaml)."
    return replace(command, notes=(*command.notes, note))


def _apply_assignments(command: LauncherCommand, env: Mapping[str, str]) -> LauncherCommand:
    """Passes variables set before the command to every rank; devices among them become slots."""
    devices = env.get(VISIBLE, "")
    has_slots = command.picked is not None or command.include or command.exclude
    if VISIBLE in env and has_slots:
        note = f"{VISIBLE}={escape_text(devices)} is not used: the launcher's flags say which slots to use."
        command = replace(command, notes=(*command.notes, note))
        env = {name: value for name, value in env.items() if name != VISIBLE}
    elif _SLOTS.fullmatch(devices):
        command = replace(command, picked=tuple(map(int, devices.split(","))))
        env = {name: value for name, value in env.items() if name != VISIBLE}
    return replace(command, request=replace(command.request, env={**command.request.env, **env})) if env else command
