"""A training that somebody else started: which it is, where its ranks are, and the answer."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.duration import span
from aboard.core.evidence import Evidence
from aboard.core.nodeset import fold
from aboard.core.phase import Phase
from aboard.core.rankset import fold_ranks
from aboard.core.verdict import Why
from aboard.core.worlds import World
from aboard.diagnoses import Severity
from aboard.ui.hanging import hanging
from aboard.ui.why import WhyView

SHOWN = 6


class ForeignView:
    """Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, world: World, evidence: Evidence, why: Why, *, verbose: bool) -> None:
        self._world = world
        self._evidence = evidence
        self._why = why
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        world = self._world
        age = span(self._evidence.now - world.began)
        place = f", which meet at {world.address}:{world.port}" if world.port and world.size > 1 else ""
        found = f"{world.noun} {fold_ranks(world.seats)} of {world.size}"
        yield Text.assemble((world.what, "bold"), f" on {fold(world.nodes)}, begun {age} ago: {found}{place}")
        for ranks, where in list(places(world, self._evidence))[:SHOWN]:
            yield from hanging(Text(f"  {world.noun} {fold_ranks(ranks)}  ", style="dim"), where, options.max_width)
        yield ""
        if self._why.findings and all(finding.severity is Severity.INFO for finding in self._why.findings):
            yield Text(_standing(self._evidence.quiet or 0.0))
            yield ""
        yield WhyView(world.what, self._why, verbose=self._verbose)


def places(world: World, evidence: Evidence) -> Iterator[tuple[list[int], str]]:
    """Who is where, those at the same place together; of launchers, whether they have come to where they meet."""
    found: dict[str, list[int]] = {}
    for view in evidence.views:
        if view.alive:
            where = f"{view.at or 'running'} at {view.site}" if view.site is not None else view.phase.word
            if world.launching:
                where = "waits for the others" if view.phase >= Phase.STORE else "is on its way to the meeting place"
            found.setdefault(where, []).append(view.rank)
    for where, ranks in found.items():
        yield ranks, where


def _standing(quiet: float) -> str:
    if not quiet:
        return "nothing is wrong that could be seen: it moves"
    return f"nothing has moved for {span(quiet)}, which may be its work; ask again if that lasts"
