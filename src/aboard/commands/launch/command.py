"""`aboard launch`."""

import asyncio
import sys

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
from aboard.commands.shared.options.command_after_dashes import LaunchCommand, launch_on_host
from aboard.commands.shared.options.node_arguments import node_arguments
from aboard.core.run.lease import Lease
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import commands
from aboard.engine.request.dial_first import dial_first
from aboard.engine.request.launch_options import LaunchOptions
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_launch import TypedLaunch

OTHERS = ("torchrun", "deepspeed", "sbatch")


@click.command(cls=LaunchCommand)
@node_arguments
@click.option("-m", "--module", is_flag=True, help="Run the command as a Python module.")
@click.option("--no-python", is_flag=True, help="Run the command directly, even if it ends in .py.")
@RANKS_OPTION
@ENV_OPTION
@click.option(
    "--env-file", multiple=True, metavar="FILE", help="Read variables from a file in the format of .deepspeed_env."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    metavar="N",
    help="Set OMP_NUM_THREADS for every rank; default: that of your shell, or else the number of cores per rank.",
)
@click.option(
    "--bind/--no-bind",
    default=None,
    help="Pin each rank to the cores of a NUMA node; the default is its GPU's, and none on CPUs.",
)
@click.option("--master-address", metavar="ADDRESS", help="Address of rank 0; default: one that all nodes can reach.")
@click.option(
    "--master-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Use exactly this port for rank 0; default: a free one.",
)
@CHECK_OPTION
@RESTARTS_OPTION
@SPARES_OPTION
@MIN_NODES_OPTION
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
@ON_STALL_OPTION
@click.option(
    "--no-beacon",
    is_flag=True,
    help="Don't load Aboard's beacon, which reports progress, into ranks; phases, steps and stacks are then not shown.",
)
@click.option(
    "--capture/--no-capture",
    default=None,
    help="Run COMMAND as it is until it calls a launcher, and replace that; or run COMMAND as a rank. Default: capture"
    " scripts, make, and front ends such as axolotl.",
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
@ALONE_OPTION
@DETACH_OPTION
@click.option("--on", "host", metavar="HOST", help="Control the run from HOST, detached; needs aboard and ssh there.")
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be started on each node; start nothing.")
@click.option(
    "--as", "other", type=click.Choice(OTHERS), help="With --dry-run: print equivalent commands, or a batch script."
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print the plan as JSON.")
@run_options
def launch(
    where: NodeArguments,
    options: LaunchOptions,
    command: tuple[str, ...],
    trial: bool,
    host: str | None,
    dry: bool,
    other: str | None,
    as_json: bool,
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
    typed = TypedLaunch(where=where, command=command, options=options)
    job = typed.find_job()
    if other or as_json:
        _require_dry_run(dry, other, as_json=as_json)
    if job is not None or other == "sbatch":
        script_only = not as_json and other in (None, "sbatch")
        sys.exit(_submit_job(job or require_slurm_settings(where), typed, dry=dry, script_only=script_only))
    if not (dry or trial or options.detach):
        sys.exit(asyncio.run(_launch_attached(typed)))
    # Imported only when used: a launch dials its nodes first.
    from aboard.commands.launch.launch_modes import print_dry_run, run_detached, show_trial  # noqa: PLC0415 - as above

    spec = typed.read()
    if dry:
        sys.exit(print_dry_run(spec, other=other, as_json=as_json))
    sys.exit(show_trial(spec) if trial else run_detached(spec))


async def _launch_attached(typed: TypedLaunch) -> int:
    """Dials the nodes before anything else: ssh needs longer than the rest of the program needs to load."""
    async with dial_first(typed, load="aboard.commands.launch.launch_modes") as (spec, dialer):
        from aboard.commands.launch.launch_modes import run_attached  # noqa: PLC0415 - loaded while the nodes are dialled

        return await run_attached(spec, dialer)


def _submit_job(settings: SlurmSettings, typed: TypedLaunch, *, dry: bool, script_only: bool) -> int:
    """Submits the launch as a Slurm job, or prints the script; other plans need the nodes of a job."""
    from aboard.commands.launch.show_job import print_batch_script, submit_and_follow  # noqa: PLC0415 - only for Slurm
    from aboard.commands.shared.printed_output import print_notes  # noqa: PLC0415 - only for Slurm

    typed.options.read_environment(typed.where.environ)
    argv = typed.where.argv
    if dry and not script_only:
        from aboard.core.slurm.conductor_command import refuse_outside_job  # noqa: PLC0415 - only for Slurm

        refuse_outside_job(settings, argv)
    print_notes(typed.check_alone())
    if dry:
        return print_batch_script(settings, argv)
    return submit_and_follow(settings, argv, detach=typed.options.detach)


def _require_dry_run(dry: bool, other: str | None, *, as_json: bool) -> None:
    if not dry:
        option = f"--as {other}" if other else "--json"
        fix = commands.LAUNCH_DRY.fix("as", launcher=other) if other else commands.LAUNCH_DRY.fix("json")
        problem = Problem(where=option, seen=NEEDS_DRY_RUN, fix=fix)
        raise InputError(commands.LAUNCH_DRY, [problem])
    if other and as_json:
        seen = "--as prints commands for a launcher, not JSON"
        raise InputError.of(commands.LAUNCH_DRY, "--json", seen, "both")
