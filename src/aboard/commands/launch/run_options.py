"""The options that `launch` and `train` share: what ranks get, what is checked, and where the run is controlled from.

Each is declared here once; a command puts it where its help lists it, and gets the values as one `LaunchOptions`.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from aboard.core.run.recovery.recovery_policy import StallAction
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.byte_sizes import parse_size
from aboard.diagnoses import AboardError, InputError
from aboard.diagnoses.slurm import submission
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.engine.request.launch_options import LaunchOptions, OptionError
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_words import RESUBMIT, RUN
from aboard.record.runs import RUN_ID

NEEDS_DRY_RUN = "this option needs --dry-run; without it, the command would start a run"
RANKS_OPTION = click.option(
    "--ranks", type=click.IntRange(1), metavar="N", help="Ranks per node; default: one per slot."
)
ENV_OPTION = click.option(
    "--env",
    "envs",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable for every rank; NAME alone copies it from this shell.",
)
CHECK_OPTION = click.option(
    "--check",
    type=click.Choice(("quick", "full", "none")),
    default="quick",
    show_default=True,
    help="Which preflight check to run.",
)
RESTARTS_OPTION = click.option(
    "--restarts",
    type=click.IntRange(0),
    metavar="N",
    help="Restart after a failure that is not the program's, up to N times without a new checkpoint; default: 10 for"
    " train, 0 for launch.",
)
SPARES_OPTION = click.option(
    "--spares",
    metavar="N|NODES",
    help="Keep the last N nodes, or these, as spares: they replace nodes that fail. Implies --restarts.",
)
ON_STALL_OPTION = click.option(
    "--on-stall",
    type=click.Choice([action.value for action in StallAction]),
    help="When ranks are stuck: report why, also stop the run, or restart it after a minute, unless the program is the"
    " cause. Default: report; restart for aboard train with restarts.",
)
MIN_NODES_OPTION = click.option(
    "--min-nodes",
    type=click.IntRange(1),
    metavar="N",
    help="Continue on fewer nodes, but at least N, when one fails and no spare is left.",
)
ALONE_OPTION = click.option(
    "--alone", is_flag=True, help="Run on this machine alone, even if it looks like one node of several."
)
DETACH_OPTION = click.option(
    "-d", "--detach", is_flag=True, help="Run in the background; see aboard status, logs, stop."
)


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the hidden options of a batch script; the command gets them and the options above as `options`."""

    @click.option(RESUBMIT, "resubmits", type=click.IntRange(0), default=0, hidden=True)
    @click.option(RUN, "run", hidden=True, callback=_parse_run_id)
    @wraps(command)
    def with_options(**options: Any) -> None:
        own = {field.name: options.pop(field.name) for field in fields(LaunchOptions) if field.name in options}
        if options.pop("sync", False):
            own["sync_limit"] = parse_sync_limit(own["sync_limit"])
        else:
            own.pop("sync_limit", None)
        try:
            command(options=LaunchOptions(**own, cwd=str(Path.cwd())), **options)
        except OptionError as error:
            raise click.BadParameter(str(error), param_hint=error.option) from None

    return with_options


def require_slurm_settings(where: NodeArguments) -> SlurmSettings:
    """The job that cluster.slurm describes; raises if there is none."""
    if where.slurm_settings is None:
        raise AboardError(submission.REQUEST, "--as sbatch needs the section cluster.slurm")
    return where.slurm_settings


def _parse_run_id(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    # It becomes a path.
    if text is not None and not RUN_ID.fullmatch(text):
        raise click.BadParameter("this is not the id of a run")
    return text


def parse_sync_limit(text: str) -> int:
    """The bytes of `--sync-limit`."""
    size = parse_size(text)
    if size is None:
        seen = f"'{escape_text(text)}' is not a size"
        raise InputError.of(commands.LAUNCH_SYNC, "--sync-limit", seen, "size")
    return size
