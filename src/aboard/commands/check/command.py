"""`aboard check`."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from aboard.commands.check.live_view import show_live_check
from aboard.commands.check.report_view import CheckReportView, format_check_json, format_check_lines
from aboard.commands.shared.findings.subject_results import SubjectStatus, summarize_subjects
from aboard.commands.shared.options.node_arguments import node_arguments
from aboard.commands.shared.printed_output import build_console, print_report
from aboard.config.this_machine import find_environment
from aboard.core.exit_codes import choose_exit_code
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.rank_environment import RankSpec
from aboard.core.text.input_text import suggest_fix
from aboard.diagnoses import InputError, Problem, Severity, sort_by_severity
from aboard.diagnoses.usage import commands
from aboard.doctor.collective import subject as collective
from aboard.doctor.compute import subject as compute
from aboard.doctor.host.leftovers import END_LEFTOVERS, LEFTOVERS
from aboard.doctor.network import subject as network
from aboard.doctor.reach import subject as reach
from aboard.doctor.subjects import SUBJECTS
from aboard.engine.check.check_cluster import check_cluster
from aboard.engine.monitoring.notify_problems import check_with_receivers
from aboard.engine.request.node_arguments import NodeArguments


@click.command()
@node_arguments
@click.option("--quick", is_flag=True, help="Run only the checks that every launch runs.")
@click.option("--only", multiple=True, metavar="SUBJECT", help="Check only this subject; repeatable.")
@click.option("--skip", multiple=True, metavar="SUBJECT", help="Skip this subject; repeatable.")
@click.option("--all-pairs", is_flag=True, help="Test every pair of nodes, even above 64 nodes.")
@click.option(
    "--fix",
    is_flag=True,
    help="Terminate processes that dead Aboard runs left on the nodes; they are matched by run id only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.option(
    "--report", "page", metavar="FILE", help="Also write findings, nodes and every link's bandwidth as an HTML page."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings and for subjects that were not tested.")
@click.option("-v", "--verbose", is_flag=True, help="Show one row per node, and info findings in full.")
def check(
    where: NodeArguments,
    quick: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    all_pairs: bool,
    fix: bool,
    as_json: bool,
    page: str | None,
    strict: bool,
    verbose: bool,
) -> None:
    """Check all nodes in parallel: reachability, hardware, software, network, and what would stop a run.

    NODES are names, node sets (n1 gpu[01-16]) or aboard.yaml files. The default is ./aboard.yaml, or else the
    nodes of the Slurm job.

    A terminal shows a live table, then the findings, worst first, then one line for each subject that passed or was
    not tested. A pipe or file gets plain lines. A finding's lines have the severity (block, warn, info), the code, the
    nodes, and seen:, why:, fix: or then: with its text, so that grep ^block, grep -w n2 and sed -n 's/.* fix: //p'
    work. The other lines start with fine, untested, node or done.

    Exit code: 0 no finding above a warning; 1 with --strict, for warnings and for subjects that were not tested; 2 a
    finding would stop a run; 3 the command is wrong.
    """
    cluster = where.cluster()
    subjects = _select_subjects(only, skip)
    replaced = {network.SUBJECT.name: network.build_subject(all_pairs=True)} if all_pairs else {}
    if collective.SUBJECT.name in only:
        replaced[collective.SUBJECT.name] = collective.build_subject(every=True)
    if compute.SUBJECT.name in only:
        replaced[compute.SUBJECT.name] = compute.build_subject(cpus=True)
    subjects = tuple(replaced.get(each.name, each) for each in subjects)
    if fix:
        subjects = _add_leftover_cleanup(subjects)
    console = build_console()
    spec = RankSpec(environment=find_environment(os.environ))
    with show_live_check(console, quiet=as_json) as watcher:
        checking = check_cluster(cluster, subjects, quick=quick, spec=spec, check_observer=watcher)
        checked = check_with_receivers(checking, None if only else cluster, where.environ)
        report, problems = asyncio.run(checked)
    facts, seconds = report.facts, report.seconds
    if only and reach.SUBJECT not in subjects:
        # Other subjects say nothing about a node that was not reached.
        problems = [*problems, *(each for each in reach.SUBJECT.judge(facts) if each.severity is Severity.BLOCK)]
    found = sort_by_severity([*report.findings, *problems])
    outcomes = summarize_subjects(facts, subjects, report.by_subject)
    if as_json:
        click.echo(format_check_json(facts, outcomes, found, seconds))
    else:
        view = CheckReportView(facts, subjects, report.by_subject, found, seconds=seconds, verbose=verbose)
        print_report(console, view, format_check_lines(facts, subjects, report.by_subject, found, seconds))
    if page is not None:
        from aboard.commands.check.report_page import write_check_page  # noqa: PLC0415 - only for this option

        write_check_page(Path(page), facts, outcomes, found, seconds)
    untested = any(outcome.status is SubjectStatus.NOT_TESTED for outcome in outcomes)
    sys.exit(choose_exit_code(found, strict=strict, untested=untested))


def _select_subjects(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[Subject, ...]:
    """The subjects to check; an unknown name is an error that suggests a similar one."""
    names = [subject.name for subject in SUBJECTS]
    unknown = [name for name in (*only, *skip) if name not in names]
    if unknown:
        raise InputError(
            commands.CHECK_SUBJECT,
            [
                Problem(
                    where="aboard check",
                    seen=f"there is no subject {name!r}",
                    fix=suggest_fix(commands.CHECK_SUBJECT, name, names),
                )
                for name in unknown
            ],
        )
    return tuple(subject for subject in SUBJECTS if subject.name not in skip and (not only or subject.name in only))


def _add_leftover_cleanup(subjects: tuple[Subject, ...]) -> tuple[Subject, ...]:
    """Adds the probe that terminates leftover processes; it needs the subject that finds them."""
    if not any(LEFTOVERS in subject.multi_node_probes for subject in subjects):
        seen = "--fix terminates leftover processes, which only the 'host' subject finds"
        raise InputError.of(commands.CHECK_FIX, "aboard check", seen)
    return tuple(
        replace(subject, multi_node_probes=(*subject.multi_node_probes, END_LEFTOVERS))
        if LEFTOVERS in subject.multi_node_probes
        else subject
        for subject in subjects
    )
