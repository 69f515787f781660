"""`aboard launch --dry-run`: prints the plan without starting it."""

import asyncio
import os

import click
from rich.console import Console

from aboard.cli.runs.attached_and_detached import build_preflight
from aboard.cli.runs.launch_view import format_finished_lines
from aboard.cli.runs.start_launch import ResolvedLaunch
from aboard.core.exit_codes import choose_exit_code
from aboard.core.plan.launcher_export import SETUP_FILE, build_plan_export, format_deepspeed, format_torchrun
from aboard.core.plan.plan import Plan
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import escape_lines
from aboard.flows.check.check_observer import NullCheckObserver
from aboard.flows.launch.launch_run import plan_launch
from aboard.flows.train.check_resume import TrainingFinished
from aboard.record.runs import Runs
from aboard.ui.findings_view import FindingsView
from aboard.ui.launch.plan_json import format_plan_json
from aboard.ui.launch.plan_view import PlanView

RUN_PLACEHOLDER = "dry-run"


def print_dry_run(arguments: ResolvedLaunch, *, other: str | None, as_json: bool) -> int:
    """Prints the plan and any findings; returns the exit code that findings would give the launch."""
    preflight = build_preflight(arguments)
    try:
        report, plan, refused = asyncio.run(
            plan_launch(
                arguments.cluster,
                arguments.request,
                preflight,
                run=RUN_PLACEHOLDER,
                watcher=NullCheckObserver(),
                payload=arguments.cargo,
            )
        )
    except TrainingFinished as finished:
        click.echo("\n".join(format_finished_lines(finished, Runs.of(os.environ))))
        return 0
    for note in arguments.notes:
        click.echo(f"note: {escape_lines(note)}", err=True)
    found = [*refused, *(report.findings if report else ())]
    findings = [finding for finding in found if finding.severity > Severity.INFO]
    if as_json:
        click.echo(format_plan_json(plan))
    elif other:
        click.echo(_format_for_launcher(plan, other), nl=False)
    else:
        Console(highlight=False).print(PlanView(plan), crop=False)
    if findings:
        Console(stderr=True, highlight=False).print(FindingsView(findings, in_full=False), crop=False)
    return choose_exit_code(findings)


def _format_for_launcher(plan: Plan, other: str) -> str:
    if other == "torchrun":
        return format_torchrun(build_plan_export(plan))
    files = format_deepspeed(build_plan_export(plan))
    texts = {"hostfile": files.hostfile, ".deepspeed_env": files.deepspeed_env, SETUP_FILE: files.setup}
    heredocs = "".join(f"cat > {name} <<'END'\n{text}END\n" for name, text in texts.items() if text)
    first, _, rest = files.command.partition("\n")
    return f"{first}\n{heredocs}{rest}"
