"""`aboard launch --trial`: shows the result of each group of nodes, then which nodes fail."""

import asyncio

import click
from rich.console import Console

from aboard.cli.runs.attached_and_detached import build_launch_spec
from aboard.cli.runs.start_launch import ResolvedLaunch
from aboard.core.exit_codes import EXIT_BLOCKED, EXIT_FAILED
from aboard.core.run.node_trial import TrialResult, build_trial_finding
from aboard.diagnoses import Finding, Severity
from aboard.flows.check.check_cluster import CheckReport, build_dialer, probe_cluster
from aboard.flows.check.check_observer import NullCheckObserver
from aboard.flows.launch.launch_run import build_rank_spec
from aboard.flows.launch.launch_session import LaunchSpec
from aboard.flows.launch.trial import run_trial
from aboard.ui.findings_view import FindingsView
from aboard.ui.status_marks import FINE, SEVERITY_MARKS


def show_trial(arguments: ResolvedLaunch) -> int:
    """Returns 0 if every group passed, 1 if one failed, 2 if the preflight check already failed."""
    launch_spec = build_launch_spec(arguments)
    console = Console(highlight=False)
    report, results = asyncio.run(_try_groups(launch_spec, console))
    severe = [finding for finding in report.findings if finding.severity > Severity.INFO]
    if results is None:
        console.print(FindingsView(severe, in_full=False), crop=False)
        return EXIT_BLOCKED
    trial_verdict = build_trial_finding(results)
    if trial_verdict is not None:
        console.print(FindingsView([trial_verdict], in_full=False), crop=False)
        return EXIT_FAILED
    click.echo(f"every node passed, alone and together; only the record {launch_spec.run.path} is left")
    return 0


async def _try_groups(launch_spec: LaunchSpec, console: Console) -> tuple[CheckReport, list[TrialResult] | None]:
    watcher = NullCheckObserver()
    dialer = build_dialer(watcher)
    claim = launch_spec.run.claim()
    try:
        preflight = launch_spec.preflight
        spec = build_rank_spec(preflight, launch_spec.request)
        async with probe_cluster(
            launch_spec.cluster,
            preflight.subjects,
            dialer,
            quick=preflight.quick,
            spec=spec,
            watcher=watcher,
            keep=True,
        ) as (report, links):
            if any(_is_blocking(finding) for finding in report.findings):
                return report, None
            dialer.keep(links)
        results = await run_trial(
            report.facts.cluster,
            launch_spec.request,
            report.facts,
            dialer,
            launch_spec.run,
            lease=launch_spec.lease,
            on_tried=lambda each: _print_group(console, each),
        )
        return report, results
    finally:
        await dialer.close()
        claim.release()


def _is_blocking(finding: Finding) -> bool:
    return finding.severity is Severity.BLOCK


def _print_group(console: Console, group_result: TrialResult) -> None:
    mark = FINE if group_result.passed else SEVERITY_MARKS[Severity.BLOCK]
    who = "+".join(group_result.group) if len(group_result.group) <= 2 else f"all {len(group_result.group)}"  # noqa: PLR2004 - a pair
    console.print(f"[{mark.style}]{mark.sign}[/] {who:24} {group_result.seconds:5.1f} s  ", end="")
    console.print(group_result.outcome, markup=False)
