"""`aboard why --nodes` and `--pid`."""

import asyncio
import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from aboard.commands.shared.json_output import dump_json
from aboard.commands.why.external_job_view import ExternalJobView, group_by_place
from aboard.commands.why.external_jobs import ExternalJobVerdict, diagnose_external_job
from aboard.config.cluster_loader import load_cluster
from aboard.config.slurm_allocation import read_allocation
from aboard.config.this_machine import inspect_this_machine
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.exit_codes import choose_exit_code
from aboard.diagnoses import InputError, Problem, Severity
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands

MOST_PID = 2**22


def print_nodes_verdict(names: Sequence[str], *, as_json: bool, verbose: bool) -> None:
    """Diagnoses the job on these nodes and exits: 0 nothing wrong was found, 2 a verdict."""
    cluster = load_cluster(names, here=inspect_this_machine(), allocation=read_allocation(os.environ))
    _print_job_verdict(cluster, (), as_json=as_json, verbose=verbose)


def print_pids_verdict(arguments: Sequence[str], *, as_json: bool, verbose: bool) -> None:
    """The same for processes on this machine."""
    here = Node(name=os.uname().nodename, transport=TransportKind.LOCAL)
    _print_job_verdict(Cluster(nodes=(here,)), _parse_pids(arguments), as_json=as_json, verbose=verbose)


def _parse_pids(arguments: Sequence[str]) -> tuple[int, ...]:
    wrong = [text for text in arguments if not (text.isdecimal() and 0 < int(text) < MOST_PID)]
    if wrong:
        problems = [
            Problem(
                where="aboard why --pid", seen=f"'{escape_text(text)}' is not a process id", fix=commands.WHY_PID.fix()
            )
            for text in wrong
        ]
        raise InputError(commands.WHY_PID, problems)
    return tuple(dict.fromkeys(map(int, arguments)))


def _print_job_verdict(cluster: Cluster, pids: tuple[int, ...], *, as_json: bool, verbose: bool) -> None:
    if sys.stderr.isatty():
        names = fold_names([node.name for node in cluster])
        click.secho(f"inspecting {names} until it is clear whether the job is making progress …", dim=True, err=True)
    judgement = asyncio.run(diagnose_external_job(cluster, pids))
    if as_json:
        click.echo(dump_json(_build_json(judgement)))
    else:
        view = ExternalJobView(judgement.world, judgement.evidence, judgement.why, verbose=verbose)
        Console(highlight=False).print(view, crop=False)
    sys.exit(choose_exit_code(judgement.why.findings[:1], blocking=Severity.WARN))


def _build_json(verdict: ExternalJobVerdict) -> dict[str, object]:
    world = verdict.world
    ranks = {rank: {"node": seat.node, "pid": seat.process.pid} for rank, seat in sorted(world.ranks.items())}
    return {
        "what": world.what,
        "world": world.size,
        "master": f"{world.address}:{world.port}",
        world.noun + "s": ranks,
        "missing": world.missing,
        "places": [{"ranks": ranks, "where": where} for ranks, where in group_by_place(world, verdict.evidence)],
        "findings": verdict.why.findings,
        "ruled_out": verdict.why.ruled_out,
        "seconds": round(verdict.why.seconds, 3),
    }
