"""What stands behind `--`: a command of its own, for here or for another host."""

import os
from pathlib import Path
from typing import NoReturn

import click

from aboard.core import shell
from aboard.core.errors import InputError, Problem

_NEEDS_ABOARD = (
    "command -v aboard >/dev/null || { echo 'error [launch-on]: aboard is not on the PATH of this host'"
    "'; fix: pip install aboard    # there' >&2; exit 3; }"
)


class Launching(click.Command):
    """Takes what stands behind `--` as it is: it is the command's, and no option of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, command = args, list[str]()
        if "--" in args:
            at = args.index("--")
            before, command = args[:at], args[at + 1 :]
        rest = super().parse_args(ctx, list(before))
        ctx.params["command"] = tuple(command)
        if not command and not ctx.resilient_parsing:
            script = next((word for word in before if word.endswith(".py")), "train.py")
            seen = "there is no command behind --"
            problem = Problem(where="aboard launch", seen=seen, fix=f"aboard launch -- {script} …")
            raise InputError("launch-command", [problem])
        return rest


def elsewhere(host: str, argv: list[str]) -> NoReturn:
    """Types the same command on another host, where it goes on in the background."""
    line = f"{_NEEDS_ABOARD}; cd {shell.quote(str(Path.cwd()))} && exec {shell.join(['aboard', *_without_on(argv)])}"
    os.execvp("ssh", ["ssh", "-o", "BatchMode=yes", "--", host, line])  # noqa: S606 - no shell of ours is wanted


def _without_on(argv: list[str]) -> list[str]:
    """The same words, with --detach instead of --on; what stands behind `--` is the command's."""
    end = argv.index("--")
    verb, *before = argv[:end]
    words: list[str] = []
    while before:
        word = before.pop(0)
        if word == "--on":
            before.pop(0)
        elif not word.startswith("--on="):
            words.append(word)
    return [verb, "--detach", *words, *argv[end:]]
