"""`aboard check`."""

import asyncio
import sys

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from aboard.checks import SUBJECTS
from aboard.cli.nodes import node_options
from aboard.core.cluster import Cluster
from aboard.core.errors import InputError, Problem
from aboard.core.finding import Severity
from aboard.core.reach import Reached
from aboard.core.rule import Subject
from aboard.core.words import did_you_mean
from aboard.flows.check import OnProgress, Report
from aboard.flows.check import check as run_check
from aboard.ui.as_json import check_json
from aboard.ui.check_live import CheckLive
from aboard.ui.check_table import CheckTable
from aboard.ui.findings import FindingsView
from aboard.wires.limits import raise_files

EXIT_WARNED = 1
EXIT_BLOCKED = 2


@click.command()
@node_options
@click.option("--quick", is_flag=True, help="Only what every launch asks.")
@click.option("--only", multiple=True, metavar="SUBJECT", help="Only this subject; may be given again.")
@click.option("--skip", multiple=True, metavar="SUBJECT", help="All but this subject; may be given again.")
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("-v", "--verbose", is_flag=True, help="One row for each node, however many there are.")
def check(
    cluster: Cluster,
    quick: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    as_json: bool,
    strict: bool,
    verbose: bool,
) -> None:
    """Ask every node, all at once: who answers, what it is, and what is wrong with it.

    NODES are names or node sets (n1 gpu[01-16]) or aboard.yaml files; without any, ./aboard.yaml is used.

    Exit code: 0 all well, 1 warnings with --strict, 2 something would stop a run, 3 the command itself is wrong.
    """
    raise_files(len(cluster))
    subjects = _chosen(only, skip)
    if as_json:
        report = asyncio.run(run_check(cluster, subjects, quick=quick))
        click.echo(check_json(report.facts, report.findings, report.seconds))
    else:
        console = Console(highlight=False)
        report = _watched(cluster, subjects, console, quick=quick)
        _show(console, report, subjects, every_node=verbose)
    sys.exit(_exit_code(report, strict=strict))


def _chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[Subject, ...]:
    """The subjects to ask about; a name that is none is an error that lists them."""
    names = [subject.name for subject in SUBJECTS]
    unknown = [name for name in (*only, *skip) if name not in names]
    if unknown:
        raise InputError(
            "check-subject",
            [
                Problem(where="aboard check", seen=f"no subject {name!r}", fix=did_you_mean(name, names))
                for name in unknown
            ],
        )
    return tuple(subject for subject in SUBJECTS if subject.name not in skip and (not only or subject.name in only))


def _watched(cluster: Cluster, subjects: tuple[Subject, ...], console: Console, *, quick: bool) -> Report:
    if not console.is_terminal:
        return asyncio.run(run_check(cluster, subjects, quick=quick))
    live = CheckLive(cluster.nodes)
    with Live(live, console=console, transient=True, refresh_per_second=8):
        progress: OnProgress = live.progress
        return asyncio.run(run_check(cluster, subjects, quick=quick, on_progress=progress))


def _show(console: Console, report: Report, subjects: tuple[Subject, ...], *, every_node: bool) -> None:
    console.print(CheckTable(report.facts, every_node=every_node))
    console.print()
    console.print(FindingsView(report.findings), soft_wrap=False)
    for subject in subjects:
        if all(finding.severity is Severity.INFO for finding in report.by_subject[subject.name]):
            console.print(Text.assemble(("✓ ", "bold green"), (subject.name, "green"), f"  {subject.title}"))
    total = len(report.facts.cluster)
    answer = sum(isinstance(contact, Reached) for contact in report.facts.contacts.values())
    stops = sum(finding.severity is Severity.BLOCK for finding in report.findings)
    verdict = f"{stops} finding{'s' if stops > 1 else ''} would stop a run" if stops else "all aboard"
    console.print(f"{answer} of {total} nodes answer; {verdict}.  {report.seconds:.1f} s")


def _exit_code(report: Report, *, strict: bool) -> int:
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    if worst is Severity.BLOCK:
        return EXIT_BLOCKED
    return EXIT_WARNED if strict and worst is Severity.WARN else 0
