"""Parse, call one flow, render, exit code. Commands are imported when they are typed, since start-up time counts."""

import sys
from importlib import import_module

import click

from aboard import __version__
from aboard.core.text.input_text import suggest_word
from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import commands

# The order of the story, not of the alphabet. A new verb must replace one.
VERBS = {
    "init": "write aboard.yaml: which nodes, how to reach them",
    "check": "every node, in seconds: who answers, who doesn't, why, what to type",
    "launch": "any script over all nodes: looked at first, watched, ended whole",
    "train": "a model over all nodes: data and memory looked at first, the same losses on any number of ranks",
    "status": "your runs, and how far each has come",
    "logs": "what the ranks of a run printed, merged by time, equal lines folded",
    "stop": "end a run, gently or now; nothing is left behind",
    "export": "a checkpoint as safetensors that transformers loads",
    "data": "what is in your files, as the model will see it",
    "why": "what a run came to, or the long story of a code: how it shows, why, how to mend it",
    "bundle": "a run's record as a redacted archive, to show it to somebody else",
    "sandbox": "a practice cluster of real hosts on this machine",
}

EXIT_ERROR = 3
EXIT_INTERRUPTED = 130


class CommandGroup(click.Group):
    """Lists the verbs in the order in which a person needs them, and loads only the one that is typed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            seen = f"there is no command {cmd_name!r}: {suggest_word(cmd_name, VERBS)}"
            raise AboardError(commands.COMMAND, seen)
        command: click.Command = getattr(import_module(f"aboard.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("The way there"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aboard")
def cli() -> None:
    """Every node aboard, then the train leaves.

    Takes you from a few machines that you can ssh to, to a training run over all of them. What doesn't work
    is named: which node, why, and what to type.
    """


def main() -> None:
    """Every error that a user can meet leaves here with its name, and with an exit code of its own."""
    try:
        sys.exit(cli.main(prog_name="aboard", standalone_mode=False))
    except click.exceptions.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("\nstopped.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_ERROR)
    except AboardError as error:
        _show_error(error)
        sys.exit(EXIT_ERROR)


def _show_error(error: AboardError) -> None:
    from rich.console import Console  # noqa: PLC0415 - a command that succeeds need not pay for it

    from aboard.ui.error_message import show_error  # noqa: PLC0415 - a command that succeeds need not pay for it

    show_error(Console(stderr=True, highlight=False), error)
