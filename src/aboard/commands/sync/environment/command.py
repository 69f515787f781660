"""`aboard sync --env`."""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from aboard.commands.shared.printed_output import build_console, print_report
from aboard.commands.sync.environment.environment_view import (
    describe_environment,
    format_environment_json,
    list_environment_findings,
)
from aboard.commands.sync.environment.sync_environment import require_virtual_environment, sync_environment
from aboard.commands.sync.sync_view import NodeProgressView
from aboard.config.this_machine import (
    abbreviate_home,
    build_fallback_place,
    find_environment,
    find_environment_place,
    get_cache_folder,
    record_environment_place,
)
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names
from aboard.core.environment.sync_report import EnvironmentProgress, EnvironmentSyncResult
from aboard.core.exit_codes import EXIT_FAILED
from aboard.diagnoses import NO_FIX, InputError, Problem, Severity
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import environment_sync
from aboard.transport.node_dialer import NodeDialer, choose_bulk_transport


def sync_active_environment(nodes: Sequence[Node], *, path: str | None, dry: bool, as_json: bool) -> int:
    """Recreates the active environment on the nodes, shows the result, and returns the exit code.

    `path` is another path of it there, which later commands use as well. Without one, an environment whose own path no
    node's user may write goes below their home.
    """
    console = build_console()
    run = partial(_run_where_possible, nodes, path, dry=dry)
    if as_json:
        result = run(lambda _progress: None)
        click.echo(format_environment_json(result))
    else:
        with NodeProgressView(console) as view:
            result = run(view.update)
    if not as_json:
        report = describe_environment(result)
        print_report(console, report, report.format_lines())
    if result.nodes and not dry:
        record_environment_place(_find_prefix(), result.prefix, os.environ)
    worst = max((each.severity for each in list_environment_findings(result)), default=Severity.INFO)
    return EXIT_FAILED if worst is Severity.BLOCK else 0


def _find_prefix() -> Path:
    return require_virtual_environment(find_environment(os.environ))


def _choose_place(path: str | None) -> str:
    """A path below the home is below the home on the nodes, too; `~/` may be quoted."""
    if path is None:
        return find_environment_place(_find_prefix(), os.environ)
    place = path if path.startswith("~/") else abbreviate_home(Path(path))
    if Path(path.removeprefix("~/").rstrip("/")).name in ("", "..", "~") or ".." in Path(path).parts:
        problem = Problem(where="--env-path", seen=f"'{escape_text(path)}' is no path of a new directory", fix=NO_FIX)
        raise InputError(environment_sync.PATH, [problem])
    return place.rstrip("/")


def _run_where_possible(
    nodes: Sequence[Node], path: str | None, on_progress: Callable[[EnvironmentProgress], None], *, dry: bool
) -> EnvironmentSyncResult:
    result = _run(nodes, _choose_place(path), on_progress, dry=dry)
    denied = [name for name, error in result.failures.items() if error.diagnosis is environment_sync.DENIED]
    if path is not None or len(denied) < len(nodes):
        return result
    place = build_fallback_place(_find_prefix())
    click.echo(
        f"note: {escape_text(result.prefix, 300)} can't be written on {fold_names(denied)}: the environment goes to"
        f" {place} there, and ranks use it",
        err=True,
    )
    return _run(nodes, place, on_progress, dry=dry)


def _run(
    nodes: Sequence[Node], place: str, on_progress: Callable[[EnvironmentProgress], None], *, dry: bool
) -> EnvironmentSyncResult:
    async def run() -> EnvironmentSyncResult:
        async with NodeDialer(choose_bulk_transport) as dialer:
            return await sync_environment(
                nodes,
                dialer,
                find_environment(os.environ),
                cache=get_cache_folder(os.environ).parent,
                target=place,
                dry=dry,
                on_progress=on_progress,
            )

    return asyncio.run(run())
