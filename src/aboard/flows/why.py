"""`aboard why RUN`: a live run's nodes are asked; of one that is over, its record tells."""

from aboard.core.verdict import Why
from aboard.flows.control import ask_why
from aboard.flows.status import summary
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs


def the_run(runs: Runs) -> RunDirectory | None:
    """The one that is meant when none is named: the newest that lives."""
    return next((run for run in runs.all() if run.live), None)


async def why(run: RunDirectory) -> Why:
    if run.live:
        return await ask_why(run)
    return Why(findings=summary(run).findings)
