"""`aboard train`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from aboard.cli.errand import typed_command
from aboard.cli.extra import need_train
from aboard.cli.launch import CHECKS, read_env
from aboard.cli.nodes import NodeWords, node_words
from aboard.core.lease import ATTACHED_SECONDS, DETACHED_SECONDS, Lease
from aboard.diagnoses import InputError, Problem, training
from aboard.wires.limits import raise_files

if TYPE_CHECKING:
    from aboard.config.train import TrainWords

DEFAULT_FILE = "aboard.yaml"
YAML = (".yaml", ".yml")
# Between SIGTERM and SIGKILL when the user ends it: for the last checkpoint.
FAREWELL_SECONDS = 300.0


@click.command()
@node_words
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
    where: NodeWords, print_config: bool, dry: bool, ranks: int | None, envs: tuple[str, ...], how: str, detach: bool
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
    words = _written(where)
    if print_config:
        _print(words)
        return
    need_train("training")
    # torch stays out of this process; what is loaded here is the data part, for those who train.
    from aboard.cli.training import Asked, trained  # noqa: PLC0415 - the reason is above

    cluster = where.cluster()
    raise_files(len(cluster))
    seconds = DETACHED_SECONDS if detach else ATTACHED_SECONDS
    lease = Lease(seconds=seconds, farewell=FAREWELL_SECONDS)
    command = typed_command(sys.argv[1:])
    asked = Asked(env=read_env(envs, ()), ranks=ranks, check=how, lease=lease, command=command, dry=dry, detach=detach)
    sys.exit(trained(words, cluster, asked))


def _written(where: NodeWords) -> "TrainWords":
    from aboard.config.train import load_training  # noqa: PLC0415 - pydantic takes 100 ms, which --help needn't wait for

    files = [name for name in where.nodes if name.endswith(YAML)]
    if not files and Path(DEFAULT_FILE).exists():
        files = [DEFAULT_FILE]
    if not files and not where.sets:
        seen = "no file says what to train, and there is no ./aboard.yaml"
        raise InputError(training.FILE, [Problem(where="aboard train", seen=seen, fix=training.FILE.fix())])
    return load_training(files, where.sets)


def _print(words: "TrainWords") -> None:
    from aboard.ui.train_config import ConfigView, config_lines  # noqa: PLC0415 - for those who ask

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(ConfigView(words.choices), crop=False)
    else:
        click.echo("\n".join(config_lines(words.choices)))
