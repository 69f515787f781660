"""`aboard check`."""

import asyncio
import os
import sys
from dataclasses import replace

import click
from rich.console import Console
from rich.live import Live

from aboard.checks import SUBJECTS, collective, network
from aboard.checks.host.leftovers import END_LEFTOVERS, LEFTOVERS
from aboard.cli.nodes import node_options
from aboard.config.here import find_environment
from aboard.core.cluster import Cluster
from aboard.core.rank_environment import RankSpec
from aboard.core.rule import Subject
from aboard.core.words import meant
from aboard.diagnoses import InputError, Problem, Severity, commands
from aboard.flows.check import Report
from aboard.flows.check import check as run_check
from aboard.ui.as_json import check_json
from aboard.ui.check_live import CheckLive
from aboard.ui.check_view import CheckView
from aboard.ui.plain import plain_lines
from aboard.ui.verdict import Status, subject_outcomes
from aboard.wires.limits import raise_files

EXIT_WARNED = 1
EXIT_BLOCKED = 2


@click.command()
@node_options
@click.option("--quick", is_flag=True, help="Only what every launch asks.")
@click.option("--only", multiple=True, metavar="SUBJECT", help="Only this subject; may be given again.")
@click.option("--skip", multiple=True, metavar="SUBJECT", help="All but this subject; may be given again.")
@click.option("--all-pairs", is_flag=True, help="Try each pair of nodes, above 64 nodes too.")
@click.option("--fix", is_flag=True, help="End what dead runs of Aboard left on the nodes, by run id only.")
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, and for subjects that were not tested.")
@click.option("-v", "--verbose", is_flag=True, help="A row for each node, and infos in full.")
def check(
    cluster: Cluster,
    quick: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    all_pairs: bool,
    fix: bool,
    as_json: bool,
    strict: bool,
    verbose: bool,
) -> None:
    """Ask every node, all at once: who answers, what it is, and what is wrong with it.

    NODES are names or node sets (n1 gpu[01-16]) or aboard.yaml files; without any, ./aboard.yaml is used.

    On a terminal, a table fills in as answers come, then the findings follow, worst first, and a line for each
    subject that passed or was not tested. Into a pipe or a file go plain lines, each whole in itself: the severity
    (block, warn, info), the code, the nodes, then seen:, why:, fix: or then: and its text; so grep ^block, grep -w n2
    and sed -n 's/.* fix: //p' do what they say. Lines with fine, untested, node and done in front tell the rest.

    Exit code: 0 nothing above a warning, 1 with --strict for warnings and for subjects that were not tested, 2
    something would stop a run, 3 the command itself is wrong.
    """
    raise_files(len(cluster))
    subjects = _chosen(only, skip)
    if all_pairs:
        subjects = tuple(network.subject(all_pairs=True) if each is network.SUBJECT else each for each in subjects)
    if collective.SUBJECT.name in only:
        subjects = tuple(collective.subject(every=True) if each is collective.SUBJECT else each for each in subjects)
    if fix:
        subjects = _mending(subjects)
    console = Console(highlight=False)
    if console.is_terminal and not as_json:
        report = _watched(cluster, subjects, console, quick=quick)
        console.print(
            CheckView(
                report.facts, subjects, report.by_subject, report.findings, seconds=report.seconds, verbose=verbose
            ),
            crop=False,
        )
    else:
        report = asyncio.run(run_check(cluster, subjects, quick=quick, spec=_spec()))
        click.echo(_text(report, subjects, as_json=as_json))
    sys.exit(_exit_code(report, subjects, strict=strict))


def _chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[Subject, ...]:
    """The subjects to ask about; a name that is none is an error that lists them."""
    names = [subject.name for subject in SUBJECTS]
    unknown = [name for name in (*only, *skip) if name not in names]
    if unknown:
        raise InputError(
            commands.CHECK_SUBJECT,
            [
                Problem(
                    where="aboard check", seen=f"no subject {name!r}", fix=meant(commands.CHECK_SUBJECT, name, names)
                )
                for name in unknown
            ],
        )
    return tuple(subject for subject in SUBJECTS if subject.name not in skip and (not only or subject.name in only))


def _mending(subjects: tuple[Subject, ...]) -> tuple[Subject, ...]:
    """The subjects with the one exercise that changes something; without its subject there is nothing to end."""
    if not any(LEFTOVERS in subject.exercises for subject in subjects):
        seen = "--fix ends leftovers, which are not looked for without the subject 'host'"
        problem = Problem(where="aboard check", seen=seen, fix=commands.CHECK_FIX.fix())
        raise InputError(commands.CHECK_FIX, [problem])
    return tuple(
        replace(subject, exercises=(*subject.exercises, END_LEFTOVERS)) if LEFTOVERS in subject.exercises else subject
        for subject in subjects
    )


def _watched(cluster: Cluster, subjects: tuple[Subject, ...], console: Console, *, quick: bool) -> Report:
    live = CheckLive()
    with Live(live, console=console, transient=True, refresh_per_second=8):
        return asyncio.run(run_check(cluster, subjects, quick=quick, spec=_spec(), watcher=live))


def _spec() -> RankSpec:
    return RankSpec(environment=find_environment(os.environ))


def _text(report: Report, subjects: tuple[Subject, ...], *, as_json: bool) -> str:
    if as_json:
        outcomes = subject_outcomes(report.facts, subjects, report.by_subject)
        return check_json(report.facts, outcomes, report.findings, report.seconds)
    return "\n".join(plain_lines(report.facts, subjects, report.by_subject, report.findings, report.seconds))


def _exit_code(report: Report, subjects: tuple[Subject, ...], *, strict: bool) -> int:
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    if worst is Severity.BLOCK:
        return EXIT_BLOCKED
    outcomes = subject_outcomes(report.facts, subjects, report.by_subject)
    skipped = any(outcome.status is Status.NOT_TESTED for outcome in outcomes)
    return EXIT_WARNED if strict and (worst is Severity.WARN or skipped) else 0
