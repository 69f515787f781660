"""`aboard train`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from aboard.commands.launch.run_options import (
    ALONE_OPTION,
    CHECK_OPTION,
    DETACH_OPTION,
    ENV_OPTION,
    MIN_NODES_OPTION,
    NEEDS_DRY_RUN,
    ON_STALL_OPTION,
    RANKS_OPTION,
    RESTARTS_OPTION,
    SPARES_OPTION,
    require_slurm_settings,
    run_options,
)
from aboard.commands.shared.options.node_arguments import node_arguments
from aboard.commands.shared.options.train_extra import require_train_extra
from aboard.commands.shared.printed_output import build_console, print_report
from aboard.config.input_files import YAML_SUFFIXES, find_default_files
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings, StallAction
from aboard.diagnoses import AboardError, InputError
from aboard.diagnoses.slurm import remote_runs
from aboard.diagnoses.usage import commands
from aboard.engine.request.launch_options import LaunchOptions
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_words import format_typed_command
from aboard.trainer.diagnoses import training

if TYPE_CHECKING:
    from aboard.core.slurm.slurm_settings import SlurmSettings
    from aboard.trainer.settings.train_settings import TrainSettings

# Between SIGTERM and SIGKILL when the user stops the run: time to save a last checkpoint.
FAREWELL_SECONDS = 300.0
# Without a new checkpoint, unless the user says otherwise.
RESTARTS = 10


@click.command()
@node_arguments
@click.option("--print-config", is_flag=True, help="Print every setting and its source as YAML, then exit.")
@click.option("--dry-run", "dry", is_flag=True, help="Prepare data and model and check the nodes; start nothing.")
@click.option("--as", "other", type=click.Choice(("sbatch",)), help="With --dry-run: only print the batch script.")
@RANKS_OPTION
@ENV_OPTION
@CHECK_OPTION
@RESTARTS_OPTION
@SPARES_OPTION
@ON_STALL_OPTION
@MIN_NODES_OPTION
@ALONE_OPTION
@DETACH_OPTION
@run_options
def train(where: NodeArguments, options: LaunchOptions, print_config: bool, dry: bool, other: str | None) -> None:
    """Train a model on this machine or on all nodes, and check beforehand what would spoil the run.

    aboard train [FILE.yaml] [NODES] [--set train.learning_rate=1e-5 …]

    The `train` and `data` sections of FILE (default: ./aboard.yaml) describe the run. Before any rank starts,
    Aboard checks and tokenizes the data, downloads the model once, and refuses a run that does not fit in memory. It
    checks the nodes and copies missing files to them. Ranks run offline, with this machine's version of Aboard.

    On a login node of a Slurm cluster, with `cluster.slurm` in FILE, Aboard submits the run as a job and follows it;
    Ctrl-C then ends only the view.

    The losses are the same on one rank or many. Ctrl-C saves a checkpoint and stops; the same command resumes from it.

    Exit code: the failed rank's; 2 the data, the nodes or the memory estimate stopped the run; 3 the command or
    the file is wrong; 130 after Ctrl-C.
    """
    settings = _load_settings(where)
    if print_config:
        _print_settings(settings)
        return
    if other is not None:
        if not dry:
            raise InputError.of(commands.LAUNCH_DRY, f"--as {other}", NEEDS_DRY_RUN, "train")
        from aboard.commands.launch.show_job import print_batch_script  # noqa: PLC0415 - only for Slurm

        sys.exit(print_batch_script(require_slurm_settings(where), sys.argv[1:]))
    require_train_extra("training")
    # This process does not import torch; the imports below load only the data part.
    from aboard.commands.train.show_training import prepare_and_submit, prepare_and_train  # noqa: PLC0415 - as above
    from aboard.commands.train.training_payload import build_request  # noqa: PLC0415 - as above

    detach = options.detach
    if (job := where.job_to_submit) is not None:
        options.read_environment(where.environ)
        _require_resume(settings, job)
        # Slurm chooses the nodes: spares that have a name are looked for in the job.
        names = [f"node{number + 1}" for number in range(job.nodes)]
        spares = _resolve_recovery(settings, options, names, named=False).spares
        ranks, words = options.ranks, sys.argv[1:]
        sys.exit(prepare_and_submit(settings, job, words, ranks=ranks, spares=len(spares), dry=dry, detach=detach))
    cluster = where.cluster()
    command = format_typed_command(where.argv)
    notes = options.check_job_size(where, options.ranks)
    typed_env = options.read_environment(where.environ)
    recovery = _resolve_recovery(settings, options, [node.name for node in cluster])
    resumes, recovers = settings.settings["resume"] == "auto", recovery.restarts > 0
    notes += where.check_job(command, detach=detach, resumes=resumes, recovers=recovers)
    lease = Lease(seconds=options.lease_seconds, farewell=FAREWELL_SECONDS)
    request = build_request(typed_env, options.ranks)
    spec = options.build_spec(where, cluster, request, notes, lease=lease, recovery=recovery)
    sys.exit(prepare_and_train(settings, spec, typed_env=typed_env, dry=dry, detach=detach))


def _resolve_recovery(
    config: "TrainSettings", options: LaunchOptions, names: Sequence[str], *, named: bool = True
) -> RecoverySettings:
    """What is done after a failure of training on these nodes; without `named`, their real names are not known."""
    asked = config.recovery.override(options.recovery)
    if not named and not isinstance(asked.spares, int):
        asked = replace(asked, spares=None)
    refusal = "" if config.settings["global_batch_size"] else "batch"
    return options.resolve_recovery(
        asked, names, restarts=RESTARTS, on_stall=StallAction.RESTART, min_nodes_refusal=refusal
    )


def _require_resume(config: "TrainSettings", slurm: "SlurmSettings") -> None:
    """Refuses further jobs that would all start at the same step."""
    resume = config.settings["resume"]
    if slurm.resubmit_limit and resume != "auto":
        seen = f"further jobs are to continue this training run, but train.resume is {resume}"
        raise AboardError(remote_runs.RESUBMIT, seen, command=format_typed_command(sys.argv[1:]))


def _load_settings(where: NodeArguments) -> "TrainSettings":
    from aboard.trainer.settings.train_settings import load_train_settings  # noqa: PLC0415 - pydantic takes 100 ms, which --help needn't wait for

    files = [name for name in where.nodes if name.endswith(YAML_SUFFIXES)]
    files = files or find_default_files(allow_file=where.allow_file)
    if not files and not where.sets:
        seen = "no config file was given, and there is no ./aboard.yaml"
        raise InputError.of(training.FILE, "aboard train", seen)
    return load_train_settings(files, where.sets)


def _print_settings(config: "TrainSettings") -> None:
    from aboard.commands.train.config_view import TrainConfigView, format_config_lines  # noqa: PLC0415 - for those who ask

    print_report(build_console(), TrainConfigView(config.choices), format_config_lines(config.choices))
