"""`aboard why`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from aboard import __version__
from aboard.cli.why_foreign import tell_nodes, tell_pids
from aboard.core.words import nearest, visible
from aboard.diagnoses import AboardError, InputError, Problem, commands
from aboard.flows.control import ask_why
from aboard.flows.status import summary
from aboard.flows.unpack import replay_bundle
from aboard.flows.why import the_run, why_again
from aboard.flows.why_log import Explained, explain
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs
from aboard.ui.as_json import dump_json
from aboard.ui.figures import many
from aboard.ui.findings import FindingsView
from aboard.ui.log_live import LogReading
from aboard.ui.replayed import ReplayedView
from aboard.ui.story import CodesView, StoryView
from aboard.ui.why import WhyView
from aboard.verdicts.told import TOLD

STORIES = {
    code: (subject, story) for subject in TOLD for story in subject.stories for code in (story.code, *story.aliases)
}


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN|CODE]")
@click.option("-v", "--verbose", is_flag=True, help="Also what was ruled out, and what could not be seen.")
@click.option("--codes", is_flag=True, help="List all codes.")
@click.option("--log", "logs", multiple=True, metavar="FILE…", help="Explain logs of any launcher; - is a pipe.")
@click.option("--bundle", metavar="FILE", help="Judge a run that `aboard bundle` packed.")
@click.option("--nodes", multiple=True, metavar="NODES…", help="Look at a training of any launcher on these nodes.")
@click.option("--pid", "pids", multiple=True, metavar="PID…", help="Look at processes of any launcher on this machine.")
@click.option("--json", "as_json", is_flag=True, help="With --log, --nodes or --pid: all of it as JSON.")
def why(
    words: tuple[str, ...],
    verbose: bool,
    codes: bool,
    logs: tuple[str, ...],
    bundle: str | None,
    nodes: tuple[str, ...],
    pids: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell why a RUN is stuck, slow or dead: who, why, and what to type.

    The nodes of a run that lives are asked at once. One that is over is judged again from its record, with what was
    last seen on the nodes; where that comes to something else than was said then, both are told. Without a RUN, the
    newest that lives is meant, or else the newest. With the CODE of a finding, its long story is told.

    With --bundle, somebody else's record is judged in the same way.

    With --log, the output of torchrun, DeepSpeed, Accelerate, NCCL or Slurm is explained, or what the kernel logged;
    exit code 0 then is nothing wrong, 2 a verdict, 3 the command itself is wrong.

    With --nodes or --pid, a training that torchrun, DeepSpeed, Accelerate, srun or a script started is looked at while
    it runs, with the same exit codes: your processes with RANK and WORLD_SIZE on NODES (written as for `aboard check`),
    or those that you name. They are neither stopped nor sent a signal. Stacks need py-spy there: pip install py-spy.
    """
    _one_way(logs=logs, bundle=bundle, nodes=nodes, pids=pids, words=words, as_json=as_json)
    if logs:
        tell_logs((*logs, *words), as_json=as_json)
    if nodes:
        tell_nodes((*nodes, *words), as_json=as_json, verbose=verbose)
    if pids:
        tell_pids((*pids, *words), as_json=as_json, verbose=verbose)
    if bundle is not None:
        tell_bundle(bundle, verbose=verbose)
    what = _one(words)
    console = Console(highlight=False)
    if codes:
        console.print(CodesView(TOLD), crop=False)
    elif what is not None and what in STORIES:
        console.print(StoryView(*STORIES[what]), crop=False)
    else:
        run = the_run(Runs.of(os.environ)) if what is None else _run(what)
        _tell_run(console, run, verbose=verbose)


def _one_way(
    *,
    logs: tuple[str, ...],
    bundle: str | None,
    nodes: tuple[str, ...],
    pids: tuple[str, ...],
    words: tuple[str, ...],
    as_json: bool,
) -> None:
    """Options that ask about different things are refused together."""
    ways = [bool(logs), bundle is not None, bool(nodes), bool(pids)]
    if sum(ways) > 1 or (bundle is not None and words):
        seen = "--log, --bundle, --nodes and --pid each stand alone"
        fix = commands.WHY_OPTIONS.fix("alone")
    elif as_json and not (logs or nodes or pids):
        seen = "--json is for --log, --nodes and --pid"
        fix = commands.WHY_OPTIONS.fix("json")
    else:
        return
    raise InputError(commands.WHY_OPTIONS, [Problem(where="aboard why", seen=seen, fix=fix)])


def _one(words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        seen = f"{len(words)} runs or codes at once: {visible(' '.join(words))}"
        fix = commands.WHY_WORDS.fix(word=words[0])
        raise InputError(commands.WHY_WORDS, [Problem(where="aboard why", seen=seen, fix=fix)])
    return words[0] if words else None


def _run(what: str) -> RunDirectory:
    try:
        return Runs.of(os.environ).find(what)
    except AboardError:
        near = nearest(what, STORIES)
        fix = commands.WHY_CODE.fix("near", code=near) if near else commands.WHY_CODE.fix("list")
        seen = f"no code and no run '{visible(what)}'"
        raise InputError(commands.WHY_CODE, [Problem(where="aboard why", seen=seen, fix=fix)]) from None


def _tell_run(console: Console, run: RunDirectory, *, verbose: bool) -> None:
    if run.live:
        console.print(WhyView(run.id, asyncio.run(ask_why(run)), verbose=verbose), crop=False)
        return
    told = why_again(run)
    if not told.why.findings and not told.changed:
        click.echo(f"{run.id} is {summary(run).state}, and nothing was found wrong with it")
        return
    click.echo(f"{run.id} is {summary(run).state}:")
    console.print(ReplayedView(told, now=__version__, verbose=verbose), crop=False)
    code = told.why.findings[0].code if told.why.findings else ""
    if code in STORIES:
        console.print(StoryView(*STORIES[code]), crop=False)


EXIT_FOUND = 2


def tell_logs(names: Sequence[str], *, as_json: bool) -> None:
    """Explains the logs and ends the program: 0 nothing is wrong, 2 something is."""
    told = _read(names)
    if as_json:
        click.echo(dump_json(told))
    elif told.findings:
        console = Console(highlight=False)
        console.print(FindingsView(told.findings, in_full=True), crop=False)
        click.secho(f"aboard why {told.findings[0].code}    # the whole story of it", dim=True)
    else:
        click.echo(f"nothing wrong in {many(told.lines, 'line')} of {many(len(told.files), 'file')}")
        if told.last:
            click.secho(f"the last one is: {told.last[-1].visible(400)}", dim=True)
    sys.exit(EXIT_FOUND if told.findings else 0)


def _read(names: Sequence[str]) -> Explained:
    if not sys.stderr.isatty():
        return explain(names)
    with LogReading(Console(stderr=True, highlight=False)) as reading:
        return explain(names, progress=reading.update)


def tell_bundle(name: str, *, verbose: bool) -> None:
    """Judges what somebody packed, and ends the program with the same codes."""
    unpacked = replay_bundle(Path(name))
    told = unpacked.replayed
    click.secho(f"{told.run}, packed by aboard {unpacked.version}", dim=True)
    if told.why.findings or told.changed:
        Console(highlight=False).print(ReplayedView(told, now=__version__, verbose=verbose), crop=False)
    else:
        click.echo("nothing was found wrong with it")
    sys.exit(EXIT_FOUND if told.why.findings else 0)
