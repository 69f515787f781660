"""What TAB completes: names of runs and nodes, and codes. It never asks, connects or fails: then there are no names."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from aboard.diagnoses import AboardError

# Names are of directories and files that somebody else may have written: no shell must find more than a word in one.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_NAMES = 1_000


def complete_runs(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    return complete_words(list_run_names(typed), typed)


def list_run_names(typed: str) -> list[str]:
    """The newest first; without their dates if a word was typed."""
    from aboard.record.runs import Runs  # noqa: PLC0415 - a command that completes nothing need not pay for it

    with suppress(AboardError, OSError):
        start = 14 if typed and not typed[0].isdecimal() else 0
        return [run.id[start:] for run in Runs.of(os.environ).all()]
    return []


def complete_nodes(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    from aboard.config.known_nodes import list_known_names  # noqa: PLC0415 - as above

    names: list[str] = []
    with suppress(AboardError, OSError, RecursionError):
        names = list_known_names(Path.home())
    return complete_words(names, typed)


def format_script(command: click.Command, shell: str) -> str:
    """What the user's shell evaluates at its start."""
    complete = get_completion_class(shell)
    assert complete is not None  # noqa: S101 - one of the option's shells
    return complete(command, {}, "aboard", "_ABOARD_COMPLETE").source()


def complete_words(words: Iterable[str], typed: str) -> list[CompletionItem]:
    """Those that begin with what was typed; without any, the shell completes paths."""
    found = dict.fromkeys(word for word in words if word.startswith(typed) and _PLAIN.fullmatch(word))
    return [CompletionItem(word) for word in islice(found, _MOST_NAMES)] or [CompletionItem(typed, type="file")]
