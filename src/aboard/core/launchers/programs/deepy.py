"""Reads gpt-neox's `python deepy.py train.py a.yml b.yml` into the deepspeed command that deepy.py builds."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext
from aboard.core.launchers.wrapped_commands import DEEPY
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

_LONGEST_COMMAND = 300


def parse_deepy(words: Sequence[str], context: LauncherContext) -> LauncherCommand | None:
    """The command that deepy.py passes to DeepSpeed's launcher; None if the words start another program.

    Only gpt-neox's own code can build it: it derives hundreds of values from the config files, the hostfile and torch.
    """
    at = next((index for index, word in enumerate(words[:4]) if word.rpartition("/")[2] == DEEPY), None)
    if at is None or any(not word.startswith("-") for word in words[1:at]):
        return None
    script = escape_text(words[at])
    if context.scripts:
        # Scripts are followed, and start nothing: whoever wrote this one would choose the program.
        seen = f"{escape_text(context.scripts[-1])} starts deepy.py, and Aboard runs no program that a script names"
        fix = pasted_commands.DEEPY.fix("script", script=context.scripts[-1])
        raise InputError(pasted_commands.DEEPY, [Problem(where=script, seen=seen, fix=fix)])
    if context.run_deepy is None:
        seen = "deepy.py is inside a container, and Aboard runs it on this machine to see its command"
        fix = pasted_commands.DEEPY.fix("container")
        raise InputError(pasted_commands.DEEPY, [Problem(where=script, seen=seen, fix=fix)])
    report = context.run_deepy(words[:at] or ["python"], words[at:], context.environ)
    environ = {**context.environ, **report.env}
    command = context.parse_inner(["deepspeed", *report.arguments], replace(context, environ=environ))
    if command is None:
        return None
    shown = escape_text(" ".join(report.arguments), _LONGEST_COMMAND)
    notes = [f"{script} ran here to build its command, and started nothing: deepspeed {shown}"]
    if command.hostfile is None:
        notes.append(
            "gpt-neox found no hostfile, so it counted the GPUs of this machine only: for several nodes, list them in"
            " /job/hostfile, or in the file that the config key hostfile names."
        )
    request = replace(command.request, env={**command.request.env, **report.env})
    return replace(command, request=request, notes=(*notes, *command.notes))
