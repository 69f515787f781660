"""`aboard launch --trial`: each group as it is tried, then who can't."""

import asyncio

import click
from rich.console import Console

from aboard.cli.errand import Errand
from aboard.cli.launch_view import EXIT_BLOCKED
from aboard.cli.launching import ordered
from aboard.core.trial import Tried, verdict
from aboard.diagnoses import Finding, Severity
from aboard.flows.check import Report, examined, watched_fleet
from aboard.flows.launch import rank_spec
from aboard.flows.session import Order
from aboard.flows.trial import trial
from aboard.flows.watcher import Unwatched
from aboard.ui.findings import FindingsView
from aboard.ui.marks import FINE, OF_SEVERITY


def tried(errand: Errand) -> int:
    """0 when every group can, 1 when one can't, 2 when the look at the nodes already says so."""
    order = ordered(errand)
    console = Console(highlight=False)
    report, held = asyncio.run(_try(order, console))
    grave = [finding for finding in report.findings if finding.severity > Severity.INFO]
    if held is None:
        console.print(FindingsView(grave, in_full=False), crop=False)
        return EXIT_BLOCKED
    found = verdict(held)
    if found is not None:
        console.print(FindingsView([found], in_full=False), crop=False)
        return 1
    click.echo(f"every node can run it, alone and with the others; nothing is left of it but {order.run.path}")
    return 0


async def _try(order: Order, console: Console) -> tuple[Report, list[Tried] | None]:
    watcher = Unwatched()
    fleet = watched_fleet(watcher)
    claim = order.run.claim()
    try:
        look = order.look
        spec = rank_spec(look, order.request)
        async with examined(
            order.cluster, look.subjects, fleet, quick=look.quick, spec=spec, watcher=watcher, keep=True
        ) as (report, links):
            if any(_stops(finding) for finding in report.findings):
                return report, None
            fleet.keep(links)
        held = await trial(
            report.facts.cluster,
            order.request,
            report.facts,
            fleet,
            order.run,
            lease=order.lease,
            on_tried=lambda each: _tell(console, each),
        )
        return report, held
    finally:
        await fleet.close()
        claim.release()


def _stops(finding: Finding) -> bool:
    return finding.severity is Severity.BLOCK


def _tell(console: Console, each: Tried) -> None:
    mark = FINE if each.passed else OF_SEVERITY[Severity.BLOCK]
    who = "+".join(each.group) if len(each.group) <= 2 else f"all {len(each.group)}"  # noqa: PLR2004 - a pair
    console.print(f"[{mark.style}]{mark.sign}[/] {who:24} {each.seconds:5.1f} s  ", end="")
    console.print(each.said, markup=False)
