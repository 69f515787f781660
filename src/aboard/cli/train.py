"""`aboard train`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from aboard.cli.launch import CHECKS, read_environment
from aboard.cli.options.node_arguments import NodeArguments, node_arguments
from aboard.cli.options.train_extra import require_train_extra
from aboard.cli.runs.launch_arguments import format_typed_command
from aboard.config.input_files import YAML_SUFFIXES
from aboard.core.run.lease import ATTACHED_SECONDS, DETACHED_SECONDS, Lease
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.trainer import training
from aboard.transport.open_file_limit import raise_open_file_limit

if TYPE_CHECKING:
    from aboard.config.training.train_settings import TrainSettings

DEFAULT_FILE = "aboard.yaml"
# Between SIGTERM and SIGKILL when the user ends it: for the last checkpoint.
FAREWELL_SECONDS = 300.0


@click.command()
@node_arguments
@click.option("--print-config", is_flag=True, help="Show what will be used and where it comes from, as YAML; no more.")
@click.option("--dry-run", "dry", is_flag=True, help="Make data and model ready, look at the nodes, and start nothing.")
@click.option("--ranks", type=click.IntRange(1), metavar="N", help="Ranks on each node; else one for each slot.")
@click.option(
    "--env", "envs", multiple=True, metavar="NAME[=VALUE]", help="For every rank; a NAME alone is taken from here."
)
@click.option(
    "--check", "how", type=click.Choice(CHECKS), default="quick", show_default=True, help="What is looked at first."
)
@click.option("-d", "--detach", is_flag=True, help="Go on in the background: aboard status, logs, stop.")
def train(
    where: NodeArguments,
    print_config: bool,
    dry: bool,
    ranks: int | None,
    envs: tuple[str, ...],
    how: str,
    detach: bool,
) -> None:
    """Train a model, on this machine or over all nodes, and say beforehand what would spoil it.

    aboard train [FILE.yaml] [NODES] [--set train.learning_rate=1e-5 …]

    The sections `train` and `data` say what is done; without FILE, those of ./aboard.yaml. Data goes through the gate
    and is tokenized, the model is fetched once, what won't fit is refused, all of it before a rank exists. The nodes
    are looked at and get the files that they lack; then every rank starts, offline, with the code of this Aboard.

    Losses are the same on one rank or many. Ctrl-C ends it with a checkpoint; the same command goes on from there.

    Exit code: that of the rank that failed; 2 when the data, the nodes or the fit stopped it, 3 when the command or
    the file is wrong, 130 after Ctrl-C.
    """
    words = _load_settings(where)
    if print_config:
        _print_settings(words)
        return
    require_train_extra("training")
    # torch stays out of this process; what is loaded here is the data part, for those who train.
    from aboard.cli.runs.training import TrainOptions, prepare_and_train  # noqa: PLC0415 - the reason is above

    cluster = where.cluster()
    raise_open_file_limit(len(cluster))
    seconds = DETACHED_SECONDS if detach else ATTACHED_SECONDS
    lease = Lease(seconds=seconds, farewell=FAREWELL_SECONDS)
    command = format_typed_command(sys.argv[1:])
    options = TrainOptions(
        env=read_environment(envs, ()), ranks=ranks, check=how, lease=lease, command=command, dry=dry, detach=detach
    )
    sys.exit(prepare_and_train(words, cluster, options))


def _load_settings(where: NodeArguments) -> "TrainSettings":
    from aboard.config.training.train_settings import load_train_settings  # noqa: PLC0415 - pydantic takes 100 ms, which --help needn't wait for

    files = [name for name in where.nodes if name.endswith(YAML_SUFFIXES)]
    if not files and Path(DEFAULT_FILE).exists():
        files = [DEFAULT_FILE]
    if not files and not where.sets:
        seen = "no file says what to train, and there is no ./aboard.yaml"
        raise InputError(training.FILE, [Problem(where="aboard train", seen=seen, fix=training.FILE.fix())])
    return load_train_settings(files, where.sets)


def _print_settings(words: "TrainSettings") -> None:
    from aboard.ui.train.config_view import TrainConfigView, format_config_lines  # noqa: PLC0415 - for those who ask

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(TrainConfigView(words.choices), crop=False)
    else:
        click.echo("\n".join(format_config_lines(words.choices)))
