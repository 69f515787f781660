"""The verdict on a run whose conductor died without ending it."""

from datetime import UTC, datetime
from operator import attrgetter

from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.run_state import Run
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Finding, Fix, Severity, Shell, join_fixes
from aboard.diagnoses.runs import death
from aboard.lazy_dataclass import dataclass

# From the end of a lease until an agent has terminated its ranks: the grace, and a sweep.
_LEASE_ENDS_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class LostConductor:
    """What the record knows of a dead conductor: its process, its last write, and the command that restarts the run.

    `saved` is the step of the last checkpoint of a training run.
    """

    pid: str
    at: float
    lease: float | None = None
    command: Shell | None = None
    step: int | None = None
    training: bool = False
    saved: int | None = None


def explain_lost_conductor(run: Run, conductor: LostConductor, *, now: float) -> Finding:
    """The verdict on a run whose conductor died, from its record."""
    running = sorted(
        (child for child in run.generation.children.values() if child.state == "started"), key=attrgetter("rank")
    )
    nodes = tuple(dict.fromkeys(child.node for child in running))
    died = f"the conductor (process {conductor.pid}) died"
    over = run.generation.ending is not None
    seen = f"{died} before any rank was started"
    if run.generation.children:
        at = f"{datetime.fromtimestamp(conductor.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        seen = f"{died} without ending the run; its last record is {format_duration(now - conductor.at)} old ({at})"
        seen += f", at step {conductor.step}" if conductor.step is not None else ""
    if conductor.training:
        saved = (
            f"the last checkpoint is from step {conductor.saved}"
            if conductor.saved is not None
            else "no checkpoint was recorded"
        )
        seen += f"; {saved}"
    if running:
        ranks = "1 rank was" if len(running) == 1 else f"{len(running)} ranks were"
        lease = "the lease" if conductor.lease is None else f"the lease of {conductor.lease:g} s"
        late = conductor.lease is not None and now > conductor.at + conductor.lease + _LEASE_ENDS_SECONDS
        them = "it" if len(running) == 1 else "them"
        ends = (
            f"have terminated {them}, because {lease} has expired" if late else f"terminate {them} when {lease} expires"
        )
        seen += f". {ranks} running on {fold_names(nodes)}, and the agents there {ends}"
    return death.CONDUCTOR_LOST.finding(
        severity=Severity.WARN if over else Severity.BLOCK,
        nodes=nodes,
        ranks=tuple(child.rank for child in running),
        seen=seen,
        fix=join_fixes(
            *([_build_restart_fix(conductor, conductor.command)] if conductor.command is not None else []),
            *([death.CONDUCTOR_LOST.fix("logs", run=run.id)] if run.generation.children else []),
            death.CONDUCTOR_LOST.fix("memory"),
        ),
    )


def _build_restart_fix(conductor: LostConductor, command: Shell) -> Fix:
    # It is what someone typed on this machine, as the run's own record has it.
    if conductor.saved is not None and conductor.training:
        return death.CONDUCTOR_LOST.fix("continue", command=command, step=conductor.saved)
    return death.CONDUCTOR_LOST.fix("continue-if-any" if conductor.training else "again", command=command)
