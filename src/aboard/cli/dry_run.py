"""`aboard launch --dry-run`: the plan, shown and not carried out."""

import asyncio
import os

import click
from rich.console import Console

from aboard.cli.errand import Errand
from aboard.cli.launch_view import finished_lines
from aboard.cli.launching import looked_at
from aboard.core.export import SETUP_FILE, as_deepspeed, as_torchrun, view
from aboard.core.plan import Plan
from aboard.diagnoses import Severity
from aboard.flows.launch import planned
from aboard.flows.train_resume import TrainingFinished
from aboard.flows.watcher import Unwatched
from aboard.record.runs import Runs
from aboard.ui.findings import FindingsView
from aboard.ui.plan_json import plan_json
from aboard.ui.plan_text import PlanView

EXIT_BLOCKED = 2
NAMED_LATER = "dry-run"


def dry_run(errand: Errand, *, other: str | None, as_json: bool) -> int:
    """Shows what would be started; with findings that would stop it, those too, and exits as the launch would."""
    look = looked_at(errand)
    try:
        report, plan, refused = asyncio.run(
            planned(errand.cluster, errand.request, look, run=NAMED_LATER, watcher=Unwatched(), cargo=errand.cargo)
        )
    except TrainingFinished as finished:
        click.echo("\n".join(finished_lines(finished, Runs.of(os.environ))))
        return 0
    for note in errand.notes:
        click.echo(f"note: {note}", err=True)
    found = [*refused, *(report.findings if report else ())]
    findings = [finding for finding in found if finding.severity > Severity.INFO]
    if as_json:
        click.echo(plan_json(plan))
    elif other:
        click.echo(_for_another(plan, other), nl=False)
    else:
        Console(highlight=False).print(PlanView(plan), crop=False)
    if findings:
        Console(stderr=True, highlight=False).print(FindingsView(findings, in_full=False), crop=False)
    return EXIT_BLOCKED if any(finding.severity is Severity.BLOCK for finding in findings) else 0


def _for_another(plan: Plan, other: str) -> str:
    if other == "torchrun":
        return as_torchrun(view(plan))
    files = as_deepspeed(view(plan))
    named = {"hostfile": files.hostfile, ".deepspeed_env": files.deepspeed_env, SETUP_FILE: files.setup}
    made = "".join(f"cat > {name} <<'END'\n{text}END\n" for name, text in named.items() if text)
    first, _, rest = files.command.partition("\n")
    return f"{first}\n{made}{rest}"
