"""The hidden options of a batch script: the run that was submitted, and how often its training is continued."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from aboard.record.runs import RUN_ID

_Command = TypeVar("_Command", bound=Callable[..., Any])
RUN, RESUBMIT = "--run", "--resubmit"
# FILE=DIGEST: what the user had allowed where they typed the command.
ALLOWED = "--allowed"
_OWN_OPTIONS = (RUN, RESUBMIT, ALLOWED)


def submitted_run(command: _Command) -> _Command:
    """Adds `--run RUN_ID` and `--resubmit N`, which only scripts written by Aboard use."""
    command = click.option(RUN, "run", hidden=True, callback=_parse_run_id)(command)
    return click.option(RESUBMIT, "resubmits", type=click.IntRange(0), default=0, hidden=True)(command)


def remove_run_options(argv: Sequence[str]) -> list[str]:
    """The words that the user typed."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    own = [
        place
        for place, word in enumerate(words[:end])
        if word in _OWN_OPTIONS or (place and words[place - 1] in _OWN_OPTIONS)
    ]
    return [word for place, word in enumerate(words) if place not in own]


def _parse_run_id(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    # It becomes a path.
    if text is not None and not RUN_ID.fullmatch(text):
        raise click.BadParameter("this is not the id of a run")
    return text
