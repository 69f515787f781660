"""`aboard launch`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from aboard.cli.options.command_after_dashes import LaunchCommand, launch_on_host
from aboard.cli.options.node_arguments import NodeArguments, node_arguments
from aboard.cli.options.submitted_run import submitted_run
from aboard.cli.options.typed_command import TypedCommand, check_script_exists
from aboard.cli.runs.start_launch import (
    ResolvedLaunch,
    dial_while_parsing,
    format_typed_command,
    list_typed_words,
    send_files_first,
)
from aboard.config.input_files import read_text
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.core.plan.launch_request import resolve_request
from aboard.core.run.lease import ATTACHED_SECONDS, DETACHED_SECONDS, Lease
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.input_text import find_env_name_error
from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses.slurm import submission
from aboard.diagnoses.untrusted import escape_lines
from aboard.diagnoses.usage import commands
from aboard.transport.open_file_limit import raise_open_file_limit

CHECKS = ("quick", "full", "none")
NEEDS_DRY_RUN = "this option needs --dry-run; without it, the command would start a run"
OTHERS = ("torchrun", "deepspeed", "sbatch")


@click.command(cls=LaunchCommand)
@node_arguments
@click.option("-m", "--module", is_flag=True, help="Run the command as a Python module.")
@click.option("--no-python", is_flag=True, help="Run the command directly, even if it ends in .py.")
@click.option("--ranks", type=click.IntRange(1), metavar="N", help="Ranks per node; default: one per slot.")
@click.option(
    "--env",
    "envs",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable for every rank; NAME alone copies it from this shell.",
)
@click.option(
    "--env-file", multiple=True, metavar="FILE", help="Read variables from a file in the format of .deepspeed_env."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    metavar="N",
    help="Set OMP_NUM_THREADS for every rank; default: the number of cores per rank.",
)
@click.option("--bind", is_flag=True, help="Pin each rank to the cores of one NUMA node.")
@click.option("--master-address", metavar="ADDRESS", help="Address of rank 0; default: one that all nodes can reach.")
@click.option(
    "--master-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Use exactly this port for rank 0; default: a free one.",
)
@click.option(
    "--check",
    "how",
    type=click.Choice(CHECKS),
    default="quick",
    show_default=True,
    help="Which preflight check to run.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=Lease.grace,
    show_default=True,
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL.",
)
@click.option(
    "--lease",
    type=click.FloatRange(4),
    metavar="SECONDS",
    help="How long ranks keep running without contact with this machine; default: 20, or 600 if detached.",
)
@click.option(
    "--on-stall",
    type=click.Choice(("report", "stop")),
    default="report",
    show_default=True,
    help="When ranks are stuck: report why, or also stop the run.",
)
@click.option(
    "--no-beacon",
    is_flag=True,
    help="Don't load Aboard's beacon, which reports progress, into ranks; phases, steps and stacks are then not shown.",
)
@click.option(
    "--trial",
    is_flag=True,
    help="Run COMMAND briefly on each node, on pairs and on all nodes, to find the nodes that fail.",
)
@click.option("--sync", is_flag=True, help="Send the working directory to every node first; see aboard sync.")
@click.option(
    "--sync-limit",
    default="1GB",
    show_default=True,
    metavar="SIZE",
    help="Ask before --sync sends more; without a terminal, stop.",
)
@click.option("-d", "--detach", is_flag=True, help="Run in the background; see aboard status, logs, stop.")
@click.option("--on", "host", metavar="HOST", help="Control the run from HOST, detached; needs aboard and ssh there.")
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be started on each node; start nothing.")
@click.option(
    "--as", "other", type=click.Choice(OTHERS), help="With --dry-run: print equivalent commands, or a batch script."
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@submitted_run
def launch(
    where: NodeArguments,
    command: tuple[str, ...],
    module: bool,
    no_python: bool,
    ranks: int | None,
    envs: tuple[str, ...],
    env_file: tuple[str, ...],
    threads: int | None,
    bind: bool,
    master_address: str | None,
    master_port: int | None,
    how: str,
    grace: float,
    lease: float | None,
    on_stall: str,
    no_beacon: bool,
    trial: bool,
    sync: bool,
    sync_limit: str,
    detach: bool,
    host: str | None,
    dry: bool,
    other: str | None,
    as_json: bool,
    run: str | None,
    resubmits: int,
) -> None:
    """Run a script on all nodes, and show which ranks hold up the start.

    aboard launch [NODES] [OPTIONS] -- COMMAND

    COMMAND is train.py with its arguments, or an existing torchrun …, deepspeed …, accelerate launch …, srun … or
    sbatch … command. The default for NODES is ./aboard.yaml, or else the nodes of the Slurm job, or else this machine
    alone.

    Aboard checks the nodes first. Then it starts every rank with torchrun's environment and shows the progress of each
    node and the ranks that the others are waiting for. It reports the first rank to fail and terminates the others.
    Ctrl-C stops the run with SIGTERM and the grace period; a second Ctrl-C skips the grace period.

    On a login node of a Slurm cluster, with `cluster.slurm` in aboard.yaml, the run is submitted as a job and followed;
    Ctrl-C then ends only the view.

    Exit code: the failed rank's (128 + N for signal N); 2 the preflight check stopped the launch; 3 the command
    is wrong; 130 after Ctrl-C.
    """
    if host is not None:
        sys.exit(launch_on_host(host, sys.argv[1:]))
    typed_words = TypedCommand(
        where=where, command=command, module=module, no_python=no_python, words=tuple(list_typed_words(sys.argv[1:]))
    )
    seconds = lease or (DETACHED_SECONDS if detach else ATTACHED_SECONDS)
    limit = _parse_sync_limit(sync_limit) if sync else None

    def read() -> ResolvedLaunch:
        request, cluster, notes = typed_words.read()
        notes += check_script_exists(request.program, cluster)
        request = replace(
            request,
            ranks=ranks or request.ranks,
            env={**request.env, **read_environment(envs, env_file)},
            threads=threads or request.threads,
            bind=bind or request.bind,
            beacon=not no_beacon,
            stop_on_stall=on_stall == "stop",
            master_address=master_address or request.master_address,
            master_port=master_port or request.master_port,
        )
        cluster, request = resolve_request(cluster, request, str(Path.cwd()))
        raise_open_file_limit(len(cluster))
        last = Lease(seconds=seconds, grace=grace)
        command_again = format_typed_command(sys.argv[1:])
        notes += where.check_job(command_again, detach=detach)
        # A job that Aboard submitted has the size that was asked for then.
        if run is None and not typed_words.has_own_size:
            notes += where.check_job_size(command_again, ranks=request.ranks)
        return ResolvedLaunch(
            cluster=cluster,
            request=request,
            check=how,
            lease=last,
            command=command_again,
            notes=notes,
            sync_limit=limit,
            run=run,
            resubmits=resubmits,
        )

    # Imported only when used: a launch dials its nodes first.
    job = typed_words.find_job()
    if job is not None or other == "sbatch":
        if other or as_json:
            _require_dry_run(dry, other, as_json=as_json)
        read_environment(envs, env_file)
        job = job or require_slurm_settings(where)
        sys.exit(
            _submit_job(job, typed_words, detach=detach, dry=dry, script_only=not as_json and other in (None, "sbatch"))
        )
    if dry or other or as_json:
        _require_dry_run(dry, other, as_json=as_json)
        from aboard.cli.runs.dry_run import print_dry_run  # noqa: PLC0415 - the reason is above

        sys.exit(print_dry_run(read(), other=other, as_json=as_json))
    if trial:
        from aboard.cli.runs.trial import show_trial  # noqa: PLC0415 - the reason is above

        sys.exit(show_trial(send_files_first(read())))
    if detach:
        from aboard.cli.runs.attached_and_detached import run_detached  # noqa: PLC0415 - the reason is above

        sys.exit(run_detached(send_files_first(read())))
    nodes = typed_words.guess()
    raise_open_file_limit(len(nodes))
    sys.exit(dial_while_parsing(nodes, read))


def _submit_job(settings: SlurmSettings, typed: TypedCommand, *, detach: bool, dry: bool, script_only: bool) -> int:
    """Submits the launch as a Slurm job, or prints the script; other plans need the nodes of a job."""
    from aboard.cli.runs.slurm_submission import print_batch_script, submit_and_follow  # noqa: PLC0415 - only for Slurm

    if dry and not script_only:
        from aboard.core.slurm.conductor_command import refuse_outside_job  # noqa: PLC0415 - only for Slurm

        refuse_outside_job(settings, sys.argv[1:])
    for note in typed.check_alone():
        click.echo(f"note: {escape_lines(note)}", err=True)
    if dry:
        return print_batch_script(settings, sys.argv[1:])
    return submit_and_follow(settings, sys.argv[1:], detach=detach)


def require_slurm_settings(where: NodeArguments) -> SlurmSettings:
    """The job that cluster.slurm describes; raises if there is none."""
    if where.slurm_settings is None:
        seen = "--as sbatch needs the section cluster.slurm"
        raise AboardError(submission.REQUEST, seen)
    return where.slurm_settings


def _parse_sync_limit(text: str) -> int:
    from aboard.cli.runs.sync_workdir import parse_limit  # noqa: PLC0415 - only for those who sync

    return parse_limit(text)


def read_environment(envs: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """The variables of `--env` and `--env-file`; a NAME alone has its value on this machine."""
    env: dict[str, str] = {}
    for file in files:
        env |= parse_env_file(read_text(file, fix=commands.LAUNCH_ENV.fix("file", file=file)), where=file)
    problems = []
    for text in envs:
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


def _require_dry_run(dry: bool, other: str | None, *, as_json: bool) -> None:
    if not dry:
        option = f"--as {other}" if other else "--json"
        fix = commands.LAUNCH_DRY.fix("as", launcher=other) if other else commands.LAUNCH_DRY.fix("json")
        problem = Problem(where=option, seen=NEEDS_DRY_RUN, fix=fix)
        raise InputError(commands.LAUNCH_DRY, [problem])
    if other and as_json:
        seen = "--as prints commands for a launcher, not JSON"
        problem = Problem(where="--json", seen=seen, fix=commands.LAUNCH_DRY.fix("both"))
        raise InputError(commands.LAUNCH_DRY, [problem])
