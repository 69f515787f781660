"""`aboard sync --env`."""

import asyncio
import os
from collections.abc import Callable, Sequence

import click
from rich.console import Console

from aboard.config.this_machine import find_environment, get_cache_folder
from aboard.core.cluster.node import Node
from aboard.core.environment.sync_report import EnvironmentProgress, EnvironmentSyncResult
from aboard.diagnoses import Severity
from aboard.flows.environment.sync_environment import sync_environment
from aboard.transport.node_dialer import NodeDialer, choose_bulk_transport
from aboard.ui.setup.environment_view import (
    EnvironmentProgressView,
    EnvironmentResultView,
    PlainEnvironmentProgress,
    format_environment_json,
    format_environment_lines,
    list_environment_findings,
)

EXIT_FAILED = 1


def sync_active_environment(nodes: Sequence[Node], *, dry: bool, as_json: bool) -> int:
    """Recreates the active environment on the nodes, shows the result, and returns the exit code."""
    console = Console(highlight=False)
    if as_json:
        result = _run(nodes, lambda _progress: None, dry=dry)
        click.echo(format_environment_json(result))
    elif console.is_terminal:
        with EnvironmentProgressView(console) as view:
            result = _run(nodes, view.update, dry=dry)
        console.print(EnvironmentResultView(result), crop=False)
    else:
        result = _run(nodes, PlainEnvironmentProgress(click.echo).update, dry=dry)
        click.echo("\n".join(format_environment_lines(result)))
    worst = max((each.severity for each in list_environment_findings(result)), default=Severity.INFO)
    return EXIT_FAILED if worst is Severity.BLOCK else 0


def _run(
    nodes: Sequence[Node], on_progress: Callable[[EnvironmentProgress], None], *, dry: bool
) -> EnvironmentSyncResult:
    async def run() -> EnvironmentSyncResult:
        dialer = NodeDialer(choose_bulk_transport)
        try:
            return await sync_environment(
                nodes,
                dialer,
                find_environment(os.environ),
                cache=get_cache_folder(os.environ).parent,
                dry=dry,
                on_progress=on_progress,
            )
        finally:
            await dialer.close()

    return asyncio.run(run())
