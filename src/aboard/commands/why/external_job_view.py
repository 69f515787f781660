"""An external job: what it is, where its ranks are, and the verdict."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.why.verdict_view import VerdictView
from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.external_jobs import ExternalJob
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.core.run.rank_phases import Phase
from aboard.core.text.durations import format_duration
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Severity

MOST_PLACES = 6


class ExternalJobView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, job: ExternalJob, evidence: Evidence, judgement: Judgement, *, verbose: bool) -> None:
        self._job = job
        self._evidence = evidence
        self._judgement = judgement
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        world = self._job
        age = format_duration(self._evidence.now - world.began)
        place = f", rendezvous at {world.address}:{world.port}" if world.port and world.size > 1 else ""
        ranks_text = f"{name_ranks(world.ranks, world.noun)} of {world.size}"
        yield Text.assemble(
            (world.what, "bold"), f" on {fold_names(world.nodes)}, started {age} ago: {ranks_text}{place}"
        )
        for ranks, where in list(group_by_place(world, self._evidence))[:MOST_PLACES]:
            yield from wrap_labelled(
                Text(f"  {name_ranks(ranks, world.noun)}  ", style="dim"), where, options.max_width
            )
        yield ""
        if self._judgement.findings and all(finding.severity is Severity.INFO for finding in self._judgement.findings):
            yield Text(_format_standing(self._evidence.quiet or 0.0))
            yield ""
        yield VerdictView(world.what, self._judgement, verbose=self._verbose)


def group_by_place(job: ExternalJob, evidence: Evidence) -> Iterator[tuple[list[int], str]]:
    """The ranks grouped by where they are; for launchers, whether they have reached the rendezvous."""
    by_place: dict[str, list[int]] = {}
    for view in evidence.views:
        if view.alive:
            where = f"{view.at or 'running'} at {view.site}" if view.site is not None else view.phase.label
            if job.launching:
                where = "waiting for the others" if view.phase >= Phase.STORE else "not at the rendezvous yet"
            by_place.setdefault(where, []).append(view.rank)
    for where, ranks in by_place.items():
        yield ranks, where


def _format_standing(quiet: float) -> str:
    if not quiet:
        return "nothing wrong was found: the job is making progress"
    return f"no progress for {format_duration(quiet)}, which may be normal; run this again if it lasts"
