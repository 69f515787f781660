"""The command after `--`, run here or on another host."""

import os
import subprocess
from pathlib import Path

import click

from aboard.core.text import shell_quoting
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import commands
from aboard.engine.request.typed_words import ALLOWED

_NEEDS_ABOARD = (
    "command -v aboard >/dev/null || { echo 'error [launch-on]: aboard is not on the PATH of this host'"
    "'; fix: pip install aboard    # there' >&2; exit 3; }"
)

_LAUNCHERS = {"torchrun", "deepspeed", "accelerate", "python", "python3"}


class LaunchCommand(click.Command):
    """Passes everything after `--` through unparsed: those are the command's options, not ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        before, command = args[:at], args[at + 1 :]
        if "--" not in args and (start := _find_command_start(args)) is not None and not ctx.resilient_parsing:
            # Before click parses it: the script's options are not ours.
            raise _build_missing_command_error(args[:start], args[start:], "-- is missing before the command")
        rest = super().parse_args(ctx, list(before))
        ctx.params["command"] = tuple(command)
        if not command and not ctx.resilient_parsing:
            raise _build_missing_command_error(before, ["train.py"], "there is no command after --")
        return rest


def _find_command_start(args: list[str]) -> int | None:
    """Where a command typed without `--` begins: at a script, a path, a launcher, or the module after -m."""
    for at, word in enumerate(args):
        last = args[at - 1] if at else ""
        # An option's value, or a file that names nodes.
        other = word.startswith("-") or last.startswith("-") or word.endswith((".yaml", ".yml"))
        module = last in {"-m", "--module"} and not word.startswith("-")
        if word.endswith((".py", ".sh")) or word in _LAUNCHERS or module or ("/" in word and not other):
            return at
    return None


def _build_missing_command_error(before: list[str], command: list[str], seen: str) -> InputError:
    fix = commands.LAUNCH_COMMAND.fix(typed=quote_typed_words(["aboard", "launch", *before, "--", *command]))
    return InputError(commands.LAUNCH_COMMAND, [Problem(where="aboard launch", seen=seen, fix=fix)])


def launch_on_host(host: str, argv: list[str]) -> int:
    """Runs the same command detached on another host, where what the user allowed here is allowed too."""
    from aboard.config.allowed_files import list_confirmed_digests  # noqa: PLC0415 - PyYAML is only needed for a file
    from aboard.transport.ssh_arguments import AS_CONFIGURED, build_ssh_argv  # noqa: PLC0415 - only for this option

    allowed = [word for each in list_confirmed_digests(os.environ) for word in (ALLOWED, each)]
    line = (
        f"{_NEEDS_ABOARD}; cd {shell_quoting.quote_word(str(Path.cwd()))} && exec"
        f" {shell_quoting.join_argv(['aboard', *_replace_on_option(argv, allowed)])}"
    )
    # Over stdin: the line may have values of --env, which other users must not find in a process list.
    command = build_ssh_argv(host, "exec sh", {**AS_CONFIGURED, "ConnectTimeout": ""})
    return subprocess.run(command, input=f"{line}\n", text=True, check=False).returncode


def _replace_on_option(argv: list[str], more: list[str]) -> list[str]:
    """The same arguments with --detach instead of --on; those after `--` stay as they are."""
    end = argv.index("--")
    verb, *before = argv[:end]
    words: list[str] = []
    while before:
        word = before.pop(0)
        if word == "--on":
            before.pop(0)
        elif not word.startswith("--on="):
            words.append(word)
    return [verb, "--detach", *more, *words, *argv[end:]]
