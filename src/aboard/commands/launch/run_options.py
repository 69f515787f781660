"""The options that `launch` and `train` share: what ranks get, what is checked, and where the run is controlled from.

Each is declared here once; a command puts it where its help lists it, and gets the values as one `RunOptions`.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from aboard.commands.shared.options.node_arguments import NodeArguments
from aboard.commands.shared.options.typed_words import RESUBMIT, RUN, format_typed_command, list_typed_words
from aboard.config.input_files import read_text
from aboard.config.this_machine import find_environment
from aboard.core.cluster.cluster import COMMAND_LINE, THIS_MACHINE, Cluster
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.core.plan.launch_request import LaunchRequest, describe_unused_master
from aboard.core.run.lease import ATTACHED_SECONDS, DETACHED_SECONDS, Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings, StallAction
from aboard.core.run.recovery.recovery_request import RecoveryRequest, parse_spares, resolve_recovery
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.input_text import find_env_name_error
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError, InputError, Problem, Shell
from aboard.diagnoses.slurm import submission
from aboard.diagnoses.untrusted import LONGEST_WORD, escape_text
from aboard.diagnoses.usage import commands
from aboard.lazy_dataclass import dataclass
from aboard.record.runs import RUN_ID

if TYPE_CHECKING:
    from aboard.engine.launch_run import LaunchSpec

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


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The values; only scripts written by Aboard give `run`, which was submitted, and `resubmits`, its further jobs."""

    ranks: int | None
    envs: tuple[str, ...]
    check: str
    alone: bool
    detach: bool
    restarts: int | None
    spares: str | None
    on_stall: str | None
    min_nodes: int | None
    run: str | None
    resubmits: int

    @property
    def lease_seconds(self) -> float:
        return DETACHED_SECONDS if self.detach else ATTACHED_SECONDS

    def read_environment(self, files: Sequence[str] = ()) -> dict[str, str]:
        """The variables of `--env` and of the files; a NAME alone has its value on this machine."""
        env: dict[str, str] = {}
        for file in files:
            env |= parse_env_file(read_text(file, fix=commands.LAUNCH_ENV.fix("file", file=file)), where=file)
        problems = []
        for text in self.envs:
            name, equals, value = text.partition("=")
            trouble = find_env_name_error(name)
            if trouble is None and not equals and name not in os.environ:
                trouble = f"{name} is not set in this shell"
            if trouble:
                fix = commands.LAUNCH_ENV.fix("value", name=name)
                problems.append(Problem(where=f"--env {name}", seen=trouble, fix=fix))
            else:
                env[name] = value if equals else os.environ[name]
        if problems:
            raise InputError(commands.LAUNCH_ENV, problems)
        return env

    def check_job_size(self, where: NodeArguments, command: Shell, ranks: int | None) -> tuple[str, ...]:
        """Notes on the size of the Slurm job; one that Aboard submitted has the size that was asked for then."""
        return () if self.run is not None else where.check_job_size(command, ranks=ranks)

    @property
    def recovery(self) -> RecoveryRequest:
        """What these options ask for."""
        spares = None if self.spares is None else parse_spares(self.spares)
        places = {"spares": f"--spares {self.spares}", "min_nodes": f"--min-nodes {self.min_nodes}"}
        said = {name: place for name, place in places.items() if getattr(self, name) is not None}
        on_stall = None if self.on_stall is None else StallAction(self.on_stall)
        return RecoveryRequest(
            restarts=self.restarts, spares=spares, min_nodes=self.min_nodes, on_stall=on_stall, places=said
        )

    def resolve_recovery(self, asked: RecoveryRequest, names: Sequence[str], **default: Any) -> RecoverySettings:
        """What is done after a failure on these nodes: `asked`, where these options don't say otherwise."""
        settings = resolve_recovery(asked.override(self.recovery), names, **default)
        if self.on_stall == StallAction.RESTART and not settings.restarts:
            raise click.BadParameter("restart needs --restarts", param_hint="--on-stall")
        return settings

    def build_spec(
        self, cluster: Cluster, request: LaunchRequest, lease: Lease, notes: tuple[str, ...], **more: Any
    ) -> "LaunchSpec":
        """The launch with these options; the nodes need not have a program that is uploaded."""
        from aboard.engine.launch_run import LaunchSpec, choose_subjects  # noqa: PLC0415 - a launch dials first

        if cluster.source == THIS_MACHINE and not self.alone:
            _refuse_one_of_several(os.environ)
        if cluster.source == THIS_MACHINE and self.alone:
            # As if it had been named.
            cluster = replace(cluster, source=COMMAND_LINE)
        return LaunchSpec(
            cluster=cluster,
            request=replace(request, restarts=more["recovery"].restarts),
            lease=lease,
            command=format_typed_command(sys.argv[1:]),
            subjects=choose_subjects(self.check, None if request.code else request.program, request.env),
            quick=self.check == "quick",
            environment=find_environment(os.environ),
            notes=(*notes, *describe_unused_master(cluster, request, os.environ)),
            run=self.run,
            resubmits=self.resubmits,
            **more,
        )


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the hidden options of a batch script; the command gets them and the options above as `options`."""

    @click.option(RESUBMIT, "resubmits", type=click.IntRange(0), default=0, hidden=True)
    @click.option(RUN, "run", hidden=True, callback=_parse_run_id)
    @wraps(command)
    def with_options(**options: Any) -> None:
        own = {field.name: options.pop(field.name) for field in fields(RunOptions)}
        command(options=RunOptions(**own), **options)

    return with_options


def _refuse_one_of_several(environ: Mapping[str, str]) -> None:
    """Refuses to run on this machine where a platform has started the same command on other nodes, too."""

    def exceeds(names: tuple[str, ...], least: int) -> list[str]:
        # torchrun's NNODES may be a range, as in 1:4.
        numbers = {name: environ.get(name, "").rpartition(":")[2] for name in names}
        return [name for name, number in numbers.items() if number.isdecimal() and int(number) > least]

    seen = [*exceeds(("NNODES", "PET_NNODES"), 1), *exceeds(("NODE_RANK", "PET_NODE_RANK"), 0)]
    # With a local rank, this shell is inside of a rank, which may be one of many on one machine.
    if "MASTER_ADDR" in environ and "LOCAL_RANK" not in environ:
        seen += exceeds(("WORLD_SIZE",), 1)
    if seen:
        names = [*seen, *(("MASTER_ADDR",) if "MASTER_ADDR" in environ else ())]
        values = ", ".join(f"{name}={escape_text(environ[name], LONGEST_WORD)}" for name in names)
        _, verb, *rest = list_typed_words(sys.argv[1:])
        alone = quote_typed_words(["aboard", verb, "--alone", *rest])
        raise AboardError(commands.LAUNCH_ALONE, f"{values} is set here, but no node is named", alone=alone)


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
