"""What `aboard init` found and wrote, and the command to type next."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.copyable_commands import REMARK, CopyableCommands
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.core.cluster.discovery import DiscoveredCluster, choose_next_step, describe_node, list_common_facts
from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.input_text import format_count
from aboard.diagnoses import format_shell

# A wider column of names leaves too little room beside it.
_WIDEST_NAMES = 30


class InitSummary:
    """The nodes, what they have in common, the file, and the next command, which reads `default` files by itself."""

    def __init__(self, cluster: DiscoveredCluster, *, output: str, action: str = "create", default: bool) -> None:
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
