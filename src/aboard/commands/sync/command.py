"""`aboard sync`: copies the working directory, data, models and the environment to nodes, or paths of nodes here."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import click
from rich.console import Console

from aboard.commands.shared.error_message import show_error
from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.options.node_arguments import ON_OPTION, node_arguments
from aboard.commands.shared.printed_output import build_console, print_findings, print_report
from aboard.commands.sync.sync_view import (
    format_collected_json,
    format_left_out,
    format_sync_json,
    format_sync_lines,
    render_sync_table,
)
from aboard.commands.sync.sync_workdir import sync_with_progress
from aboard.commands.sync.trees.collect_paths import CollectedPath, collect_from_nodes
from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.commands.sync.trees.sync_sources import (
    TrainingFiles,
    list_left_out,
    load_training_files,
    refuse_system_path,
    scan_sources,
)
from aboard.config.input_files import YAML_SUFFIXES, find_default_files
from aboard.core.cluster.file_sync import NodeTreeResult
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.exit_codes import EXIT_FAILED
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError, Finding, InputError, Unreachable
from aboard.diagnoses.nodes import agent_protocol
from aboard.diagnoses.usage import commands
from aboard.engine.request.node_arguments import NodeArguments
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer, choose_bulk_transport
from aboard.transport.open_file_limit import raise_open_file_limit

BACK_FOLDER = Path("back")


async def collect_paths(nodes: Sequence[Node], paths: Sequence[str], *, as_json: bool) -> int:
    """Collects the paths from all nodes into ./back/NODE/, and returns the exit code."""
    for path in paths:
        if not path.startswith("~"):
            refuse_system_path(Path(path))
    async with NodeDialer(choose_bulk_transport) as dialer:
        dialer.begin(nodes)
        found = await collect_from_nodes(nodes, [PurePosixPath(path) for path in paths], BACK_FOLDER, dialer)
    errors = [each.error for each in found if each.error is not None]
    if as_json:
        click.echo(format_collected_json(found))
    else:
        for each in found:
            click.echo(_describe(each))
        for error in {error.code: error for error in errors}.values():
            await asyncio.to_thread(show_error, build_console(stderr=True), error)
    return EXIT_FAILED if errors else 0


def _describe(each: CollectedPath) -> str:
    if isinstance(each.error, AboardError):
        return f"failed {each.node}: {each.error.seen} [{each.error.code}]"
    skipped = f"; skipped {each.skipped} links that lead out, special files or files of .git" if each.skipped else ""
    amount = f"{format_count(each.files, 'file')}, {format_size(each.bytes)}, received {format_size(each.received)}"
    return f"collected {each.node}: {each.target} has {amount}{skipped}"


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]…", type=click.Path(path_type=Path))
@partial(node_arguments, nodes=ON_OPTION)
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Send PATH as data: .gitignore does not apply, and nodes may pass large files on to each other; repeatable.",
)
@click.option(
    "--delete",
    is_flag=True,
    help="Delete files on the nodes that this machine lacks, but no ignored ones. Without PATH, only in directories"
    " that a sync made.",
)
@click.option("--ignored", is_flag=True, help="Send what .gitignore names, too.")
@click.option("--env", "environment", is_flag=True, help="Recreate this machine's Python environment on every node.")
@click.option(
    "--env-path", metavar="PATH", help="Where --env puts it on the nodes; default: the same path. Ranks use it there."
)
@click.option(
    "--back",
    multiple=True,
    metavar="PATH",
    help="Collect PATH from every node into ./back/NODE/ on this machine; repeatable.",
)
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be sent and deleted; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sync(where: NodeArguments, **options: Any) -> None:
    """Copy files and directories to the same path on every node.

    Without PATH, Aboard copies the working directory, and the data files and the model directory that aboard.yaml
    names. It leaves out what .gitignore names and says what that is. Paths below your home go to your home on each
    node. Unchanged files are not sent; an interrupted copy continues where it stopped.

    --env recreates the active virtual environment on every node, from wheels that are packed here; no node needs an
    index or a network. Without PATH, it copies nothing else. If no node's user may write to its path, it goes to
    ~/.local/share/aboard there, or to --env-path.

    Exit code: 0 every node has everything; 1 at least one node failed, and the others have everything; 3 the command
    is wrong.
    """
    arguments = _SyncOptions(**options)
    cluster = where.cluster()
    raise_open_file_limit(len(cluster))
    nodes = [node for node in cluster if node.transport is not TransportKind.LOCAL]
    if not nodes and not where.is_given and not find_default_files(allow_file=where.allow_file):
        seen = "no node is named, and there is no aboard.yaml in this directory"
        raise InputError.of(commands.SYNC_NODES, "aboard sync", seen)
    if not nodes:
        click.echo("every node is this machine: there is nothing to copy", err=True)
        return
    code = 0
    if arguments.environment or arguments.env_path is not None:
        from aboard.commands.sync.environment.command import sync_active_environment  # noqa: PLC0415 - only for those who ask

        code = sync_active_environment(nodes, path=arguments.env_path, dry=arguments.dry, as_json=arguments.as_json)
    if arguments.back:
        code = max(code, asyncio.run(collect_paths(nodes, arguments.back, as_json=arguments.as_json)))
    if arguments.paths or arguments.data or not (arguments.environment or arguments.env_path or arguments.back):
        code = max(code, asyncio.run(_sync_paths(where, arguments, nodes)))
    sys.exit(code)


@dataclass(frozen=True, kw_only=True)
class _SyncOptions:
    """The command line options of `aboard sync`."""

    paths: tuple[Path, ...]
    data: tuple[Path, ...]
    delete: bool
    ignored: bool
    environment: bool
    env_path: str | None
    back: tuple[str, ...]
    dry: bool
    as_json: bool


async def _sync_paths(where: NodeArguments, options: _SyncOptions, nodes: Sequence[Node]) -> int:
    """Scans the files while the nodes are dialled."""
    async with NodeDialer(choose_bulk_transport) as dialer:
        dialer.begin(nodes)
        trees = await asyncio.to_thread(_scan, where, options)
        console = build_console()
        findings: list[Finding] = []
        results = await sync_with_progress(
            console,
            nodes,
            trees,
            dialer,
            delete=options.delete,
            dry=options.dry,
            silent=options.as_json,
            on_finding=findings.append,
        )
    return _show_results(console, results, findings, trees, options, where.list_words())


def _scan(where: NodeArguments, options: _SyncOptions) -> list[SourceTree]:
    named = bool(options.paths or options.data)
    training = TrainingFiles()
    if not named or options.delete:
        training = load_training_files(_list_config_files(where), where.sets)
    if named:
        # Only what runs wrote on the nodes concerns it: that is not deleted.
        training = TrainingFiles(output=training.output)
    return scan_sources(options.paths, options.data, training, ignored=options.ignored)


def _list_config_files(where: NodeArguments) -> list[str]:
    files = [name for name in where.nodes if name.endswith(YAML_SUFFIXES)]
    return files or find_default_files(allow_file=where.allow_file)


def _show_results(
    console: Console,
    results: Mapping[str, NodeTreeResult],
    findings: Sequence[Finding],
    trees: Sequence[SourceTree],
    options: _SyncOptions,
    nodes: Sequence[str],
) -> int:
    errors = {result.error.code: result.error for result in results.values() if result.error is not None}
    for result in results.values():
        if isinstance(result.error, Unreachable) and nodes:
            # Without the names, `aboard check` may be one of this machine alone.
            result.error.fix = agent_protocol.AGENT_ASK.fix("named", words=[word for word in nodes if word != "--on"])
    special, left_out = sum(tree.special for tree in trees), list_left_out(trees)
    if options.as_json:
        click.echo(format_sync_json(results, findings, special=special, left_out=left_out))
        return EXIT_FAILED if errors else 0
    view = render_sync_table(results, dry=options.dry)
    print_report(console, view, format_sync_lines(results, dry=options.dry))
    if special:
        click.echo(f"skipped {special} special files: pipes, sockets or devices")
    for line in format_left_out(left_out, flag=True, nodes=nodes):
        click.echo(line)
    print_findings(console, findings, in_full=True)
    if errors:
        from aboard.commands.shared.error_message import show_error  # noqa: PLC0415 - errors are rare

        for error in errors.values():
            show_error(build_console(stderr=True), error)
    return EXIT_FAILED if errors else 0
