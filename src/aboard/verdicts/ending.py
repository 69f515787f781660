"""Why a run ended: the earliest death across nodes, what it says, and what only followed from it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from aboard.core.duration import span
from aboard.core.evidence import Evidence
from aboard.core.nodeset import fold
from aboard.core.run import Child, Generation, Run
from aboard.core.words import many, visible
from aboard.diagnoses import Finding, Fix, Severity, Shell, death, hang, join_fixes
from aboard.lazy import dataclass
from aboard.verdicts.apart import met_apart, missed
from aboard.verdicts.crash import with_node
from aboard.verdicts.gpu import before_death, beside_death, of_death
from aboard.verdicts.parted import parted
from aboard.verdicts.recheck import recheck
from aboard.verdicts.unreached import unreached
from aboard.verdicts.words import Around, Told, error_of, is_mild, is_same_error, told_of

# How ranks cry out when a peer has died: never the cause while there is a death that says something else.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by (remote )?peer|broken pipe|socket closed"
    r"|remote process (has )?exited|connectFullMesh failed|recvValue|sendBytes failed|failed to recv"
    r"|client socket has (failed|timed out)|DistNetworkError|NCCL.*remote error|unhandled system error"
    r"|watchdog (caught|got)|heartbeat|timed out waiting|connect timeout|wait timeout|monitoredBarrier",
    re.IGNORECASE,
)
# A cry comes within this time of what it cries about.
_ECHO_SECONDS = 5.0
_LEAVING_SECONDS = 3.0
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


def ending(evidence: Evidence) -> list[Finding]:
    """The verdict with its consequences folded under it, then what else there is to say; a good end has none."""
    cause = cause_of(evidence)
    findings = []
    echo = cause is not None and is_echo(evidence, cause)
    left = _left_early(evidence, cause) if cause is not None and echo else None
    meant = (unreached(evidence) or missed(evidence) or parted(evidence)) if echo else None
    meant = (
        met_apart(evidence, cause, evidence.tails.get(_rank(cause), ())) if cause is not None and not echo else meant
    )
    gpu = before_death(evidence, cause, _text(evidence, cause), echo=echo) if cause is not None else None
    if gpu is not None and cause is not None:
        findings.append(of_death(gpu, _verdict(evidence, cause)))
    elif left is not None and cause is not None:
        findings.append(_uneven(evidence, left, cause))
    elif meant is not None and cause is not None:
        others = [child for child in evidence.run.generation.children.values() if child.dead]
        findings.append(replace(meant, consequences=tuple(_followed(evidence, cause, others))))
    elif cause is not None:
        findings.append(_verdict(evidence, cause))
    else:
        findings += list(_without_death(evidence))
    return [*findings, *_stubborn(evidence)]


def cause_of(evidence: Evidence) -> Child | None:
    """The earliest death on the corrected clock that isn't an echo of another one."""
    now = evidence.run.generation
    decided = float("inf") if now.decided is None else now.decided
    dead = sorted((child for child in now.children.values() if child.dead and child.died_at <= decided), key=_when)
    if not dead or not is_echo(evidence, dead[0]):
        return dead[0] if dead else None
    if now.lost or _silent(evidence):
        return None
    near = [child for child in dead if child.died_at <= dead[0].died_at + _ECHO_SECONDS and not _ended(now, child)]
    return next((child for child in near if not is_echo(evidence, child)), dead[0])


def _ended(now: Generation, child: Child) -> bool:
    """Whether it was we who ended it, after somebody else's death."""
    return now.ending is not None and child.at > now.ending and child.raised is None and child.code in (-15, -9)


def _when(child: Child) -> float:
    return child.died_at


def is_echo(evidence: Evidence, child: Child) -> bool:
    """Whether a death only says that somebody else could not be reached, or did not come in time."""
    return _ECHO.search(_text(evidence, child)) is not None


def _text(evidence: Evidence, child: Child) -> str:
    if child.raised is not None:
        return f"{child.raised.type}: {child.raised.message}"
    return "\n".join(line for line in evidence.tails.get(_rank(child), ())[-5:] if not is_mild(line))


def _verdict(evidence: Evidence, cause: Child) -> Finding:
    same = _same_deaths(evidence, cause)
    told = told_of(cause, evidence.tails.get(_rank(cause), ()), _around(evidence, cause, same))
    told = with_node(evidence, cause, told)
    told = beside_death(evidence, cause, _text(evidence, cause), told)
    named = set(map(id, same))
    others = [child for child in evidence.run.generation.children.values() if child.dead and id(child) not in named]
    nodes = tuple(dict.fromkeys(child.node for child in same))
    count = f"all {len(same)}" if len(same) == evidence.plan.world else f"{len(same)} of {evidence.plan.world}"
    alone = f"rank {cause.name} on {cause.node}, {cause.phase.word},"
    return told.diagnosis.finding(
        nodes=nodes,
        ranks=tuple(map(_rank, same)),
        seen=f"{alone if len(same) == 1 else f'{count} ranks on {fold(nodes)}'} {told.seen}",
        why=told.why,
        fix=_fix(evidence, same[0], told),
        consequences=tuple(_followed(evidence, cause, others)),
    )


def _same_deaths(evidence: Evidence, cause: Child) -> list[Child]:
    """The ranks that died in the same way, the cause among them, in rank order: what all do is no node's own fault."""
    own = error_of(cause, evidence.tails.get(_rank(cause), ()))
    if own is None:
        return [cause]
    first = {part.node.name: part.starts[0].rank or 0 for part in evidence.plan.parts if part.starts}

    def names(child: Child) -> tuple[str, ...]:
        return child.node, str(_rank(child)), str(_rank(child) - first.get(child.node, 0))

    def is_same(child: Child) -> bool:
        other = error_of(child, evidence.tails.get(_rank(child), ())) if child.dead else None
        return other is not None and is_same_error(own, other, list(zip(names(cause), names(child), strict=True)))

    children = (view.child for view in evidence.views if view.child is not None)
    return [child for child in children if child is cause or is_same(child)]


def _around(evidence: Evidence, cause: Child, same: list[Child]) -> Around:
    """The nodes of the ranks that died, and one on which no rank has died in the same way."""
    nodes = {child.node for child in same}
    others = [part.node.name for part in evidence.plan.parts if part.node.name not in nodes]
    return Around(
        parts=tuple(part for part in evidence.plan.parts if part.node.name in nodes),
        peer=others[0] if others else "",
        several=len(same) > 1,
        output=evidence.said.get(_rank(cause), ()),
    )


def _left_early(evidence: Evidence, cause: Child) -> Child | None:
    """A rank that ended well before another one lost its connections: those were to it."""
    done = [child for child in evidence.run.generation.children.values() if child.state == "exited" and child.code == 0]
    # Its connections close a moment before its process is gone.
    near = (child for child in done if child.at <= cause.died_at + _LEAVING_SECONDS)
    return min(near, key=lambda child: child.at, default=None)


def _uneven(evidence: Evidence, left: Child, cause: Child) -> Finding:
    every = evidence.run.generation.children.values()
    others = [child for child in every if child.dead]
    return hang.UNEVEN.finding(
        nodes=(left.node,),
        ranks=(_rank(left),),
        seen=f"rank {left.name} on {left.node} finished, and {max(0.0, cause.died_at - left.at):.1f} s later the others"
        " had lost their connections to it",
        why="Ranks had different numbers of batches, or one left early: the others then wait for it in a collective.",
        fix=hang.UNEVEN.fix(run=evidence.plan.run, rank=left.name),
        consequences=tuple(_followed(evidence, cause, others)),
    )


def _fix(evidence: Evidence, child: Child, told: Told) -> Fix:
    return join_fixes(told.fix, told.diagnosis.fix("logs", run=evidence.plan.run, rank=child.name))


def _followed(evidence: Evidence, cause: Child, others: list[Child]) -> Iterator[Finding]:
    """One line for all the ranks that died of the first one's death, or were ended because of it."""
    after = [child for child in others if child.died_at >= cause.died_at or is_echo(evidence, child)]
    if after:
        own = [child for child in after if child.code is None or child.code > 0]
        rest = len(after) - len(own)
        ended = f"{rest} {'was' if rest == 1 else 'were'} ended" if rest else ""
        died = (
            f"{len(own)} died by {'itself' if len(own) == 1 else 'themselves'}, first rank {min(own, key=_when).name}"
            if own
            else ""
        )
        yield death.FOLLOWED.finding(
            nodes=tuple(sorted({child.node for child in after})),
            ranks=tuple(sorted(_rank(child) for child in after)),
            seen=f"of the other ranks, {', '.join(part for part in (died, ended) if part)}",
            why="They followed from the first death: whatever they say of closed connections is no cause.",
        )


def _without_death(evidence: Evidence) -> Iterator[Finding]:
    now = evidence.run.generation
    lost = now.lost[0] if now.lost else _silent(evidence)
    if lost:
        place = now.places[lost]
        ranks = tuple(start.rank or 0 for node, start in evidence.plan.starts() if node == lost)
        yield death.NODE_GONE.finding(
            nodes=(lost,),
            ranks=ranks,
            seen=f"{lost} with {many(len(ranks), 'rank')} is gone: {visible(place.why, 200)}",
            why="It lost power or its network, or its agent was killed. A run never goes on with fewer nodes.",
            fix=death.NODE_GONE.fix(check=recheck(evidence, (lost,), why="is it back? then launch again")),
        )
    elif now.stopped is not None:
        child = now.stopped
        left = "nothing of it may be left there; then launch again"
        yield death.RANK_STOPPED.finding(
            nodes=(child.node,),
            ranks=(_rank(child),),
            seen=f"rank {child.name} on {child.node} was stopped (SIGSTOP) and not let go on",
            why="All other ranks wait for it in the next collective, without a word.",
            fix=death.RANK_STOPPED.fix("check", check=recheck(evidence, (child.node,), "host", left)),
        )


def lost_conductor(run: Run, left: Remains, *, now: float) -> Finding:
    """The verdict on a run whose conductor is gone without a word, by what it had recorded until then."""
    running = sorted((child for child in run.generation.children.values() if child.state == "started"), key=_rank)
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
        ranks=tuple(map(_rank, running)),
        seen=seen,
        why="It was killed, by somebody or by the kernel out of memory, or the head was restarted. Agents that lose"
        " their conductor terminate their ranks after the lease, so that nothing is left behind.",
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


def _silent(evidence: Evidence) -> str:
    return next((name for name, place in evidence.run.generation.places.items() if place.state == "cut"), "")


def _stubborn(evidence: Evidence) -> Iterator[Finding]:
    places = evidence.run.generation.places
    left = {name: place.stubborn for name, place in places.items() if place.stubborn}
    if left:
        pids = "; ".join(f"{name}: {', '.join(map(str, found))}" for name, found in left.items())
        yield death.STUBBORN.finding(
            nodes=tuple(left),
            seen=f"processes on {fold(left)} would not die: {pids}",
            why="They hang in the kernel, on a dead mount or a dead device, where no signal reaches them.",
            fix=death.STUBBORN.fix(nodes=list(left)),
        )


def _rank(child: Child) -> int:
    return int(child.name) if child.name.isdigit() else 0
