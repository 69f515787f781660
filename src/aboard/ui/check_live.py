"""The live view of a check: how far each node is, and who is waited for."""

from collections import Counter
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aboard.core.node import Node
from aboard.core.nodeset import fold

DONE = ("answered", "failed")
# Named one by one while they are few; a wall of names helps nobody.
NAMED = 8


class CheckLive:
    """A bar, and below it the nodes that are still on their way with what they are at and since when."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._began = monotonic()
        self._at: dict[str, tuple[str, float]] = {node.name: ("waiting", self._began) for node in nodes}

    def progress(self, node: Node, phase: str) -> None:
        self._at[node.name] = (phase, monotonic())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        total = len(self._at)
        counts = Counter(phase for phase, _since in self._at.values())
        done = sum(counts[phase] for phase in DONE)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            ProgressBar(total=total, completed=done, width=min(40, options.max_width - 30)),
            Text(f"{counts['answered']}/{total} answer"),
            Text(f"{counts['failed']} don't", style="red") if counts["failed"] else Text(""),
            Text(f"{monotonic() - self._began:.1f} s", style="dim"),
        )
        yield line
        waiting = [(name, *at) for name, at in self._at.items() if at[0] not in DONE]
        if len(waiting) <= NAMED:
            for name, phase, since in waiting:
                yield Text(f"  {name}: {phase} for {monotonic() - since:.1f} s", style="dim")
        else:
            for phase in counts:
                names = [name for name, at, _since in waiting if at == phase]
                if names:
                    yield Text(f"  {phase}: {fold(names)}", style="dim", overflow="ellipsis", no_wrap=True)
