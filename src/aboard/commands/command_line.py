"""The `aboard` command. A subcommand's module is imported only when that subcommand is used, to keep start-up fast."""

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

import click

from aboard import __version__
from aboard.agent.process_spawn import drop_relative_folders
from aboard.core.exit_codes import EXIT_ERROR, EXIT_INTERRUPTED
from aboard.core.text.input_text import suggest_word
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import LONGEST_WORD, escape_text
from aboard.diagnoses.usage import commands

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# In the order in which users need them, not alphabetical. A new command must replace one.
SECTIONS = {
    "Set up": {
        "init": "find the nodes, ask what they have, and write aboard.yaml",
        "allow": "let an aboard.yaml that you cloned run the programs it names",
        "trust": "set up ssh keys and pinned host keys, and undo it",
        "sync": "copy code, data, models and the environment to every node",
        "check": "check every node and the network between them, in seconds",
        "data": "inspect and check training data as the model will see it",
    },
    "Run": {
        "launch": "run any script on all nodes: preflight, monitoring, clean shutdown",
        "train": "train a model on all nodes, with a data check and a memory estimate",
        "stop": "stop a run and leave nothing behind",
        "export": "export a checkpoint as safetensors for transformers",
    },
    "Understand": {
        "status": "list your runs and their progress",
        "logs": "show all ranks' output, merged by time, with equal lines folded",
        "why": "explain why a run is stuck, slow or dead, or what a code means",
        "report": "write one page about a run: charts, verdicts, where the time went",
        "bundle": "pack the record of a run into a redacted archive for a bug report",
    },
    "Practise": {"sandbox": "build a practice cluster of real hosts on this machine"},
}
COMMANDS = {name: what for section in SECTIONS.values() for name, what in section.items()}
# These share a directory, since they read the same records.
_ABOUT_RUNS = ("status", "logs", "stop", "bundle")


class CommandGroup(click.Group):
    """Lists the commands in their own order, and imports only the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:
                # The shell asks for completions: an error message would appear between the words that are typed.
                return None
            seen = f"there is no command {cmd_name!r}: {suggest_word(cmd_name, COMMANDS)}"
            raise AboardError(commands.COMMAND, seen)
        module = f"runs.{cmd_name}_command" if cmd_name in _ABOUT_RUNS else f"{cmd_name}.command"
        command: click.Command = getattr(import_module(f"aboard.commands.{module}"), cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Without the commands themselves: click would import all of them for their help."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for TAB

        words = [CompletionItem(name, help=what) for name, what in COMMANDS.items() if name.startswith(incomplete)]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), what) for name, what in section.items()])


def print_generated(context: click.Context, option: click.Parameter, word: str | None) -> None:
    """What --completion and --json-schema print, in place of a command."""
    if word is None or context.resilient_parsing:
        return
    if option.name == "completion":
        from aboard.commands.shared.options.completion import format_script  # noqa: PLC0415 - only for this option

        click.echo(format_script(cli, word))
    else:
        from aboard.commands.shared.options.json_schema import format_schema  # noqa: PLC0415 - only for this option

        click.echo(format_schema(word))
    context.exit()


def _show_decisions() -> None:
    from aboard.engine.records.decision_log import show_decisions  # noqa: PLC0415 - only for --debug

    # It is no part of the command that fixes repeat.
    sys.argv.remove("--debug")
    show_decisions()


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Completion with TAB, in bash: eval "$(aboard --completion bash)"',
)
@click.version_option(__version__, prog_name="aboard")
@click.option(
    "--completion",
    metavar="SHELL",
    type=click.Choice(("bash", "zsh", "fish")),
    expose_value=False,
    is_eager=True,
    callback=print_generated,
    help="Print the script that completes words in bash, zsh or fish.",
)
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda _context, _option, wanted: _show_decisions() if wanted else None,
    help="Show every decision, request and link on stderr. A run also writes them to decisions.log.",
)
@click.option(
    "--json-schema",
    metavar="COMMAND",
    type=click.Choice(("init", "export", "status", "logs", "why", "report")),
    expose_value=False,
    is_eager=True,
    callback=print_generated,
    help="Print the JSON schema of what this command prints with --json.",
)
def cli() -> None:
    """Run multi-node LLM training over ssh: check the nodes, launch or train, and diagnose failures.

    When something fails, Aboard names the node and the cause, and suggests the command to run next.
    """
    if "XDG_STATE_HOME" in os.environ or "XDG_CACHE_HOME" in os.environ:
        from aboard.config.this_machine import require_own_folders  # noqa: PLC0415 - in a home, they are the user's

        require_own_folders(os.environ)


def main() -> None:
    """Prints errors with their codes, and maps each kind to an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # An encoding such as ASCII lacks some of our characters.
            stream.reconfigure(errors="backslashreplace")
    # With `.` in PATH, git and ssh would be taken from a cloned working directory.
    drop_relative_folders(os.environ)
    if "SLURM_JOB_ID" in os.environ:
        # Until a run begins, which handles it: the default would end a batch script without a word.
        signal.signal(signal.SIGUSR1, _interrupt_before_time_limit)
    if any(word.startswith(("--env", "--set")) for word in sys.argv):
        from aboard.engine.request.typed_words import hide_values  # noqa: PLC0415 - only for these options

        with suppress(OSError):  # without /proc (macOS) nothing can be hidden: docs/security.md says so
            hide_values()
    try:
        sys.exit(cli.main(prog_name="aboard", standalone_mode=False))
    except click.exceptions.Abort as error:
        # click has caught a KeyboardInterrupt, which may have a reason.
        if str(error.__cause__ or ""):
            click.echo(f"stopped: {error.__cause__}", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except KeyboardInterrupt as error:
        click.echo(f"\nstopped: {error}" if str(error) else "\nstopped.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        sys.exit(_show_click_error(error))
    except AboardError as error:
        _show_error(error)
        sys.exit(EXIT_ERROR)


def _interrupt_before_time_limit(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt("the Slurm job reaches its time limit")


def _show_click_error(error: click.ClickException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        # click 8.2 and later raise the help that 8.1 prints.
        click.echo(error.format_message())
        return 0
    context = error.ctx if isinstance(error, click.UsageError) else None
    click.UsageError(escape_text(error.format_message(), LONGEST_WORD), context).show()
    return EXIT_ERROR


def _show_error(error: AboardError) -> None:
    from aboard.commands.shared.error_message import show_error  # noqa: PLC0415 - a command that succeeds need not pay for it
    from aboard.commands.shared.printed_output import build_console  # noqa: PLC0415 - as above

    show_error(build_console(stderr=True), error)
