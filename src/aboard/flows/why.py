"""`aboard why RUN`: a live run's nodes are asked; one that is over is judged again from its record."""

from dataclasses import replace

from aboard.core.verdict import Replayed
from aboard.diagnoses import AboardError, Severity, records
from aboard.flows.kept import kept_of
from aboard.flows.parts import parts_of
from aboard.flows.replay import replay
from aboard.flows.status import summary
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs


def the_run(runs: Runs) -> RunDirectory:
    """The one that is meant when none is named: the newest that lives, or else the newest."""
    known = runs.all()
    if not known:
        raise AboardError(records.RUN_NONE, "there is no run yet to tell of", "others")
    return next((run for run in known if run.live), known[0])


def why_again(run: RunDirectory) -> Replayed:
    """What its record comes to today, just as that of a bundle does; a conductor that was killed is only known here."""
    told = replay(kept_of(run.id, parts_of(run), own=True))
    known = summary(run)
    if known.state != "lost":
        return told
    # Beside a rank that had died before, it is a warning, and follows it.
    blocks = known.findings[0].severity is Severity.BLOCK
    found = (*known.findings, *told.why.findings) if blocks else (*told.why.findings, *known.findings)
    return replace(told, why=replace(told.why, findings=found))
