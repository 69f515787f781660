"""The verdict on a run whose conductor died without ending it."""

from datetime import UTC, datetime
from operator import attrgetter

from aboard.core.duration import span
from aboard.core.nodeset import fold
from aboard.core.run import Run
from aboard.diagnoses import Finding, Fix, Severity, Shell, death, join_fixes
from aboard.lazy import dataclass

# From the end of a lease until an agent has terminated its ranks: the grace, and a sweep.
_LEASE_ENDS_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What a record tells of a conductor that died: its process, when it last wrote, and what starts the run again.

    `saved` is the step of the last checkpoint of a training.
    """

    pid: str
    at: float
    lease: float | None = None
    command: Shell | None = None
    step: int | None = None
    training: bool = False
    saved: int | None = None


def lost_conductor(run: Run, left: Remains, *, now: float) -> Finding:
    """The verdict on a run whose conductor is gone without a word, by what it had recorded until then."""
    running = sorted(
        (child for child in run.generation.children.values() if child.state == "started"), key=attrgetter("rank")
    )
    nodes = tuple(dict.fromkeys(child.node for child in running))
    died = f"the conductor (process {left.pid}) died"
    over = run.generation.ending is not None
    seen = f"{died} before any rank was started"
    if run.generation.children:
        at = f"{datetime.fromtimestamp(left.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        seen = f"{died} without ending the run; its last record is of {span(now - left.at)} ago ({at})"
        seen += f", at step {left.step}" if left.step is not None else ""
    if left.training:
        saved = f"the last checkpoint is of step {left.saved}" if left.saved is not None else "no checkpoint is known"
        seen += f"; {saved}"
    if running:
        ranks = "1 rank was" if len(running) == 1 else f"{len(running)} ranks were"
        lease = "the lease" if left.lease is None else f"the lease of {left.lease:g} s"
        late = left.lease is not None and now > left.at + left.lease + _LEASE_ENDS_SECONDS
        ends = f"have terminated them: {lease} has run out" if late else f"terminate them when {lease} runs out"
        seen += f". {ranks} running on {fold(nodes)}, and the agents there {ends}"
    return death.CONDUCTOR_LOST.finding(
        severity=Severity.WARN if over else Severity.BLOCK,
        nodes=nodes,
        ranks=tuple(child.rank for child in running),
        seen=seen,
        fix=join_fixes(
            *([_again(left, left.command)] if left.command is not None else []),
            *([death.CONDUCTOR_LOST.fix("logs", run=run.id)] if run.generation.children else []),
            death.CONDUCTOR_LOST.fix("memory"),
        ),
    )


def _again(left: Remains, command: Shell) -> Fix:
    # It is what somebody typed on this machine, as the run's own record has it.
    if left.saved is not None and left.training:
        return death.CONDUCTOR_LOST.fix("continue", command=command, step=left.saved)
    return death.CONDUCTOR_LOST.fix("continue-if-any" if left.training else "again", command=command)
