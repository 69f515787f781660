"""`aboard status`: the runs of this user, from what their records say."""

from collections.abc import Iterator
from dataclasses import dataclass

from aboard.core.finding import Finding
from aboard.core.run import Run
from aboard.record.documents import read_document, read_findings
from aboard.record.events import replay
from aboard.record.places import RunDirectory, RunState
from aboard.record.runs import Runs
from aboard.record.samples import read_samples


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run: `state` is running, finished, failed, stopped, blocked or lost."""

    id: str
    state: str
    began: float
    world: int | None
    step: int | None
    findings: tuple[Finding, ...]


def summaries(runs: Runs, most: int) -> Iterator[Summary]:
    """The newest first."""
    for run in runs.all()[:most]:
        yield summary(run)


def summary(run: RunDirectory) -> Summary:
    folded = Run.replay(run.id, replay(run.events))
    plan = read_document(run.plan)
    world = plan.get("world") if isinstance(plan, dict) else None
    return Summary(
        id=run.id,
        state=_state(run, folded),
        began=run.began,
        world=world if isinstance(world, int) else None,
        step=_last_step(run),
        findings=tuple(read_findings(run.findings)),
    )


def _state(run: RunDirectory, folded: Run) -> str:
    if run.state is RunState.RUNNING:
        return "running"
    if folded.finished is not None:
        if folded.stopping:
            return "stopped"
        return "finished" if folded.finished.get("code") == 0 else "failed"
    # Its conductor is gone without a word: the leases have ended its ranks.
    return "lost" if run.state is RunState.LOST else "blocked"


def _last_step(run: RunDirectory) -> int | None:
    """The step that every rank of the last sample of each node had come to; a trainer that resumed knows better."""
    latest: dict[str, int] = {}
    trainer: int | None = None
    for sample in read_samples(run.samples):
        for given in sample.figures.get("children", {}).values():
            trainer = int(given.get("metrics", {}).get("step") or trainer or 0) or None
        steps = [given.get("step") for given in sample.figures.get("children", {}).values() if given.get("step")]
        if steps:
            latest[sample.node] = int(min(steps))
    return trainer or min(latest.values(), default=None)
