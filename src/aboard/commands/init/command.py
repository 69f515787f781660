"""`aboard init`: a small commented aboard.yaml for these nodes, or its JSON schema."""

import asyncio
import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.check.live_view import show_live_check
from aboard.commands.init.write_config import OutputAction, choose_output_action, discover_cluster, write_starter_file
from aboard.commands.shared.copyable_commands import REMARK, CopyableCommands
from aboard.commands.shared.json_output import dump_json
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.options.completion import complete_nodes
from aboard.commands.shared.printed_output import build_console, print_report
from aboard.config.input_files import DEFAULT_FILE
from aboard.config.known_nodes import FoundNodes, find_nodes
from aboard.config.this_machine import inspect_this_machine
from aboard.core.cluster.discovery import DiscoveredCluster, choose_next_step, describe_node, list_common_facts
from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.input_text import format_count
from aboard.diagnoses import AboardError, format_shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.lazy_dataclass import dataclass
from aboard.transport.open_file_limit import raise_open_file_limit

# A wider column of names leaves too little room beside it.
_WIDEST_NAMES = 30


@dataclass(frozen=True, kw_only=True)
class InitDocument:
    """What was found, whether `output` was created, extended or kept, and the command to type `next`."""

    output: str
    action: OutputAction
    cluster: DiscoveredCluster
    next: str


class InitSummary:
    """The nodes, what they have in common, the file, and the next command, which reads `default` files by itself."""

    def __init__(
        self, cluster: DiscoveredCluster, *, output: str, action: OutputAction = "create", default: bool
    ) -> None:
        self._cluster = cluster
        self._output = output
        self._action = action
        self._default = default

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [(fold_names(names), text) for text, names in _list_groups(self._cluster)]
        width = min(max(len(names) for names, _text in rows), _WIDEST_NAMES)
        for names, text in rows:
            style = "red" if text.startswith("not reached") else ""
            yield from wrap_labelled(Text(f"  {names:{width}}  "), text, options.max_width, style=style)
        for fact in list_common_facts(self._cluster):
            yield from wrap_labelled(Text("  "), fact, options.max_width, indent=4)
        yield Text(f"\n{self._describe_action()}")
        yield CopyableCommands(self._format_next(), first=Text("Next: "))

    def lines(self) -> Iterator[str]:
        """The same for a pipe or file: nothing is wrapped."""
        yield from (f"{fold_names(names)}: {text}" for text, names in _list_groups(self._cluster))
        yield from list_common_facts(self._cluster)
        yield self._describe_action()
        yield f"Next: {self._format_next()}"

    def document(self) -> InitDocument:
        return InitDocument(
            output=self._output, action=self._action, cluster=self._cluster, next=self._format_next().split(REMARK)[0]
        )

    def _describe_action(self) -> str:
        count = format_count(len(self._cluster.nodes), "node")
        if self._action == "keep":
            return f"{self._output} already lists {'this node' if len(self._cluster.nodes) == 1 else 'these nodes'}."
        return f"Added {count} to {self._output}." if self._action == "add" else f"Wrote {self._output} with {count}."

    def _format_next(self) -> str:
        step = choose_next_step(self._cluster)
        file = "" if self._default else f" {step.option}{format_shell('{file}', file=self._output)}"
        return f"aboard {step.command}{file}{REMARK}{step.why}"


def _list_groups(cluster: DiscoveredCluster) -> Iterator[tuple[str, list[str]]]:
    for text, alike in groupby(cluster.nodes, key=describe_node):
        yield text, [node.name for node in alike]


@click.command()
@click.argument("hosts", nargs=-1, shell_complete=complete_nodes)
@click.option("--hostfile", metavar="FILE", help="Take the nodes from a DeepSpeed hostfile.")
@click.option("-y", "--yes", is_flag=True, help="Take the defaults and never ask.")
@click.option("-o", "--output", metavar="FILE", default=DEFAULT_FILE, show_default=True, help="The file to write.")
@click.option("--schema", "wants_schema", is_flag=True, help="Print the JSON schema of aboard.yaml for your editor.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def init(
    hosts: tuple[str, ...], hostfile: str | None, yes: bool, output: str, wants_schema: bool, as_json: bool
) -> None:
    """Find the nodes, ask each what it has, and write an aboard.yaml.

    HOSTS are names or node sets, such as gpu[01-16] or alice@gpu01. Without HOSTS and --hostfile, Aboard takes the
    nodes from the first of /job/hostfile, ./hostfile and ~/hostfile, or else from the hosts in ~/.ssh/config, which
    you confirm.

    Aboard contacts all nodes at once over ssh and asks for GPUs, Python, shared directories and networks. A node that
    can't be reached yet is written too. An existing file without a `cluster` section keeps its content and gets one.
    The last line is the command to type next.
    """
    if wants_schema:
        from aboard.config.config_loader import build_json_schema  # noqa: PLC0415 - pydantic takes 100 ms

        click.echo(build_json_schema(), nl=False)
        return
    nodes = find_nodes(hosts, hostfile, home=Path.home())
    action = choose_output_action(output, nodes)
    names = fold_names(entry.name for entry in nodes.entries)
    click.echo(f"Nodes from {escape_text(nodes.source, 200)}: {names}", err=as_json)
    if nodes.guessed and not yes:
        _ask_consent()
    console = build_console()
    found = _discover(nodes, console, quiet=as_json)
    write_starter_file(output, nodes, found, action)
    summary = InitSummary(found, output=output, action=action, default=output == DEFAULT_FILE)
    if as_json:
        click.echo(dump_json(summary.document()))
    else:
        print_report(console, summary, summary.lines())


def _ask_consent() -> None:
    if not sys.stdin.isatty():
        raise AboardError(commands.INIT_ASK, "can't ask: stdin is not a terminal")
    click.confirm("Contact these nodes and write them to aboard.yaml?", default=True, abort=True, err=True)


def _discover(nodes: FoundNodes, console: Console, *, quiet: bool) -> DiscoveredCluster:
    raise_open_file_limit(len(nodes.entries))
    here = inspect_this_machine()
    with show_live_check(console, quiet=quiet) as watcher:
        return asyncio.run(discover_cluster(nodes, here=here, environ=os.environ, check_observer=watcher))
