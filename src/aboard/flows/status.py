"""`aboard status`: the runs of this user, from what their records say."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import time
from typing import Any

from aboard.core.event import Sample
from aboard.core.run import Run
from aboard.diagnoses import Finding, Shell, shell
from aboard.flows.export import published_checkpoints, read_training
from aboard.lazy import dataclass
from aboard.record.documents import read_document, read_findings
from aboard.record.events import replay
from aboard.record.places import RunDirectory, RunState
from aboard.record.runs import Runs
from aboard.record.samples import read_samples
from aboard.verdicts.death.conductor import Remains, lost_conductor


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
    plan = plan if isinstance(plan, dict) else {}
    world = plan.get("world")
    state, step = _state(run, folded), _last_step(run, folded)
    lost = state == "lost"
    return Summary(
        id=run.id,
        state=state,
        began=run.began,
        world=world if isinstance(world, int) else None,
        step=step,
        findings=(_lost_conductor(run, folded, plan, step),) if lost else tuple(read_findings(run.findings)),
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


def _lost_conductor(run: RunDirectory, folded: Run, plan: Mapping[str, Any], step: int | None) -> Finding:
    """What is known of a run whose conductor was killed: all of it from the record, and checkpoints on this machine."""
    at = max((event.at for event in replay(run.events)), default=run.began)
    saved: int | None = None
    for sample in read_samples(run.samples):
        at = max(at, sample.at)
        for given in sample.figures.get("children", {}).values():
            saved = int(given.get("metrics", {}).get("saved") or saved or 0) or None
    command, cwd, lease = plan.get("command"), plan.get("cwd"), plan.get("lease")
    training = read_training(plan)
    if training is not None:
        here = published_checkpoints(Path(training["output_dir"]).expanduser())
        saved = max([saved or 0, *(number for number, _attempt, _path in here)]) or None
        resumes = training.get("resume") == "auto"
        command = command if resumes or command is None else f"{command} --set train.resume=auto"
    remains = Remains(
        pid=str(read_document(run.pid) or "unknown"),
        at=at,
        lease=lease if isinstance(lease, int | float) else None,
        command=_again(str(cwd), command) if command else None,
        step=step,
        training=training is not None,
        saved=saved,
    )
    return lost_conductor(folded, remains, now=time())


def _again(folder: str, command: str) -> Shell:
    """The command as `typed_command` quoted it for the record."""
    return shell("cd {folder} && {command:shell}", folder=folder, command=Shell(command))


def _last_step(run: RunDirectory, folded: Run) -> int | None:
    """The step that every rank has come to, as the run itself shows it."""
    if folded.finished is not None and isinstance(folded.finished.get("step"), int):
        return int(folded.finished["step"])
    now = (sample for sample in read_samples(run.samples) if sample.at >= folded.generation.at)
    for sample in now:
        for child, given in sample.figures.get("children", {}).items():
            metrics = given.get("metrics", {})
            folded.take(Sample(node=sample.node, at=sample.at, child=child, values=given, metrics=metrics))
    return folded.step
