"""`aboard why --nodes` and `--pid`: options, and how a job that Aboard did not launch is shown."""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.json_output import dump_json
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.printed_output import build_console
from aboard.commands.why.external_jobs import ExternalJobVerdict, diagnose_external_job
from aboard.commands.why.verdict_view import VerdictView
from aboard.config.cluster_loader import load_cluster
from aboard.config.slurm_allocation import read_allocation
from aboard.config.this_machine import inspect_this_machine
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.external_jobs import ExternalJob
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement, RuledOut
from aboard.core.exit_codes import choose_exit_code
from aboard.core.run.rank_phases import Phase
from aboard.core.text.durations import format_duration
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Finding, InputError, Problem, Severity
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.lazy_dataclass import dataclass

MOST_PLACES = 6


class ExternalJobView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, job: ExternalJob, evidence: Evidence, judgement: Judgement, *, verbose: bool) -> None:
        self._job = job
        self._evidence = evidence
        self._judgement = judgement
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        world = self._job
        age = format_duration(self._evidence.now - world.began)
        place = f", rendezvous at {world.address}:{world.port}" if world.port and world.size > 1 else ""
        ranks_text = f"{name_ranks(world.ranks, world.noun)} of {world.size}"
        yield Text.assemble(
            (world.what, "bold"), f" on {fold_names(world.nodes)}, started {age} ago: {ranks_text}{place}"
        )
        for ranks, where in list(group_by_place(world, self._evidence))[:MOST_PLACES]:
            yield from wrap_labelled(
                Text(f"  {name_ranks(ranks, world.noun)}  ", style="dim"), where, options.max_width
            )
        yield ""
        if self._judgement.findings and all(finding.severity is Severity.INFO for finding in self._judgement.findings):
            yield Text(_format_standing(self._evidence.quiet or 0.0))
            yield ""
        yield VerdictView(world.what, self._judgement, verbose=self._verbose)


def group_by_place(job: ExternalJob, evidence: Evidence) -> Iterator[tuple[list[int], str]]:
    """The ranks grouped by where they are; for launchers, whether they have reached the rendezvous."""
    by_place: dict[str, list[int]] = {}
    for view in evidence.views:
        if view.alive:
            where = f"{view.at or 'running'} at {view.site}" if view.site is not None else view.phase.label
            if job.launching:
                where = "waiting for the others" if view.phase >= Phase.STORE else "not at the rendezvous yet"
            by_place.setdefault(where, []).append(view.rank)
    for where, ranks in by_place.items():
        yield ranks, where


def _format_standing(quiet: float) -> str:
    if not quiet:
        return "nothing wrong was found: the job is making progress"
    return f"no progress for {format_duration(quiet)}, which may be normal; run this again if it lasts"


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
        click.echo(dump_json(_build_explanation(judgement)))
    else:
        view = ExternalJobView(judgement.world, judgement.evidence, judgement.why, verbose=verbose)
        build_console().print(view, crop=False)
    sys.exit(choose_exit_code(judgement.why.findings[:1], blocking=Severity.WARN))


@dataclass(frozen=True, kw_only=True)
class JobSeat:
    """Where a rank or launcher runs."""

    node: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Ranks that are at the same place in their program."""

    ranks: tuple[int, ...]
    where: str


@dataclass(frozen=True, kw_only=True)
class JobExplanation:
    """Why a job of another launcher is stuck: the first finding is the verdict.

    Launchers that have not started ranks yet have the place of `ranks`.
    """

    what: str
    world: int
    master: str
    ranks: Mapping[int, JobSeat]
    missing: tuple[int, ...]
    places: tuple[JobPlace, ...]
    findings: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    seconds: float


def _build_explanation(verdict: ExternalJobVerdict) -> JobExplanation:
    job = verdict.world
    places = group_by_place(job, verdict.evidence)
    return JobExplanation(
        what=job.what,
        world=job.size,
        master=f"{job.address}:{job.port}",
        ranks={rank: JobSeat(node=seat.node, pid=seat.process.pid) for rank, seat in sorted(job.ranks.items())},
        missing=job.missing,
        places=tuple(JobPlace(ranks=tuple(ranks), where=where) for ranks, where in places),
        findings=verdict.why.findings,
        ruled_out=verdict.why.ruled_out,
        seconds=round(verdict.why.seconds, 3),
    )
