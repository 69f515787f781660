"""`aboard why RUN`: a live run's nodes are asked; one that is over is judged again from its record."""

from aboard.core.verdict import Replayed
from aboard.flows.kept import kept_of
from aboard.flows.parts import parts_of
from aboard.flows.replay import replay
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs


def the_run(runs: Runs) -> RunDirectory | None:
    """The one that is meant when none is named: the newest that lives."""
    return next((run for run in runs.all() if run.live), None)


def why_again(run: RunDirectory) -> Replayed:
    """What its record comes to today, just as that of a bundle does."""
    return replay(kept_of(run.id, parts_of(run)))
