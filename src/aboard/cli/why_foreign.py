"""`aboard why --nodes` and `--pid`."""

import asyncio
import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from aboard.config.cluster import load_cluster
from aboard.config.here import look_around
from aboard.core.cluster import Cluster
from aboard.core.node import Node
from aboard.core.nodeset import fold
from aboard.core.words import visible
from aboard.diagnoses import InputError, Problem, Severity, commands
from aboard.flows.why_foreign import Foreign, why_foreign
from aboard.ui.as_json import dump_json
from aboard.ui.why_foreign import ForeignView, places

EXIT_FOUND = 2
MOST_PID = 2**22


def tell_nodes(names: Sequence[str], *, as_json: bool, verbose: bool) -> None:
    """Looks at the training on these nodes, and ends the program: 0 nothing is wrong, 2 something is."""
    _tell(load_cluster(names, here=look_around()), (), as_json=as_json, verbose=verbose)


def tell_pids(words: Sequence[str], *, as_json: bool, verbose: bool) -> None:
    """The same for processes on this machine."""
    here = Node(name=os.uname().nodename, local=True)
    _tell(Cluster(nodes=(here,)), _pids(words), as_json=as_json, verbose=verbose)


def _pids(words: Sequence[str]) -> tuple[int, ...]:
    wrong = [word for word in words if not (word.isdecimal() and 0 < int(word) < MOST_PID)]
    if wrong:
        problems = [
            Problem(
                where="aboard why --pid",
                seen=f"'{visible(word)}' is no number of a process",
                fix=commands.WHY_PID.fix(),
            )
            for word in wrong
        ]
        raise InputError(commands.WHY_PID, problems)
    return tuple(dict.fromkeys(map(int, words)))


def _tell(cluster: Cluster, pids: tuple[int, ...], *, as_json: bool, verbose: bool) -> None:
    if sys.stderr.isatty():
        names = fold([node.name for node in cluster])
        click.secho(f"looking at {names}, for as long as it takes to see whether it moves …", dim=True, err=True)
    told = asyncio.run(why_foreign(cluster, pids))
    if as_json:
        click.echo(dump_json(_plain(told)))
    else:
        view = ForeignView(told.world, told.evidence, told.why, verbose=verbose)
        Console(highlight=False).print(view, crop=False)
    findings = told.why.findings
    sys.exit(EXIT_FOUND if findings and findings[0].severity > Severity.INFO else 0)


def _plain(told: Foreign) -> dict[str, object]:
    world = told.world
    ranks = {rank: {"node": seat.node, "pid": seat.process.pid} for rank, seat in sorted(world.seats.items())}
    return {
        "what": world.what,
        "world": world.size,
        "master": f"{world.address}:{world.port}",
        world.noun + "s": ranks,
        "missing": world.missing,
        "places": [{"ranks": ranks, "where": where} for ranks, where in places(world, told.evidence)],
        "findings": told.why.findings,
        "ruled_out": told.why.ruled_out,
        "seconds": round(told.why.seconds, 3),
    }
