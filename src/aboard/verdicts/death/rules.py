"""The rules over the evidence of a run that ended: the earliest death, what it says, and what only followed from it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from operator import attrgetter

from aboard.core.evidence import Evidence
from aboard.core.nodeset import fold
from aboard.core.run import Child
from aboard.core.verdict import Cause, Said, Sure, VerdictRule, Why
from aboard.core.words import many
from aboard.diagnoses import Finding, death, join_fixes
from aboard.verdicts import gpu
from aboard.verdicts.commands import recheck
from aboard.verdicts.death import blame
from aboard.verdicts.death.earliest import cause_of, is_echo, last_words, lost_node, tail_of
from aboard.verdicts.death.explain import Around, add_node, error_of, explain_death, is_same_error
from aboard.verdicts.judge import judge

_END = "end"


def conclude(evidence: Evidence, stall: Finding | None, *, unhurt: bool) -> Why:
    """Why a run ended: what kept it from going on, or whoever was the first to die; a good end has no finding.

    `stall` is the verdict that stood when it ended; `unhurt` is a run that was ended and did not die.
    """
    why = Why() if unhurt else judge(evidence, DEATH_RULES)
    cause = cause_of(evidence)
    if stall is not None and (unhurt or (cause is not None and is_echo(evidence, cause))):
        # What kept it from going on is what it ended of, whoever was the first to give up waiting.
        return replace(why, findings=(replace(stall, consequences=(*stall.consequences, *why.findings)),))
    return why


def gpu_failed(evidence: Evidence) -> Iterator[Said]:
    """The GPU that the first rank died of, by the kernel's own word."""
    cause = cause_of(evidence)
    if cause is not None:
        echo, said = is_echo(evidence, cause), last_words(evidence, cause)
        failure = gpu.before_death(evidence, cause, said, echo=echo)
        if failure is not None:
            finding = gpu.of_death(failure, _describe_death(evidence, cause))
            yield Cause(finding=finding, sure=Sure.CERTAIN, explains=_END)


def died(evidence: Evidence) -> Iterator[Said]:
    """The earliest death itself."""
    cause = cause_of(evidence)
    if cause is not None:
        yield Cause(finding=_describe_death(evidence, cause), sure=Sure.LIKELY, explains=_END)


def _blame(explain: Callable[[Evidence, Child], Iterator[Finding]], *, echo: bool) -> VerdictRule:
    """The rule that explains a first death which is an echo, or one which is none, by somebody else."""

    @wraps(explain)
    def rule(evidence: Evidence) -> Iterator[Said]:
        cause = cause_of(evidence)
        if cause is not None and is_echo(evidence, cause) == echo:
            for finding in explain(evidence, cause):
                followed = tuple(_followed(evidence, cause, evidence.run.generation.dead))
                yield Cause(finding=replace(finding, consequences=followed), sure=Sure.STRONG, explains=_END)

    return rule


def node_gone(evidence: Evidence) -> Iterator[Said]:
    """A node that was lost."""
    lost = lost_node(evidence)
    if lost:
        ranks = tuple(start.rank or 0 for node, start in evidence.plan.starts() if node == lost)
        place = evidence.run.generation.places[lost]
        finding = death.NODE_GONE.finding(
            nodes=(lost,),
            ranks=ranks,
            seen=f"{lost} with {many(len(ranks), 'rank')} is gone: {place.why.visible(200)}",
            fix=death.NODE_GONE.fix(check=recheck(evidence, (lost,), why="is it back? then launch again")),
        )
        yield Cause(finding=finding, sure=Sure.LIKELY, explains=_END)


def rank_stopped(evidence: Evidence) -> Iterator[Said]:
    """A rank that was stopped by a signal."""
    child = evidence.run.generation.stopped
    if child is not None:
        left = "nothing of it may be left there; then launch again"
        finding = death.RANK_STOPPED.finding(
            nodes=(child.node,),
            ranks=(child.rank,),
            seen=f"rank {child.name} on {child.node} was stopped (SIGSTOP) and not let go on",
            fix=death.RANK_STOPPED.fix("check", check=recheck(evidence, (child.node,), "host", left)),
        )
        yield Cause(finding=finding, sure=Sure.LIKELY, explains=_END)


def stubborn(evidence: Evidence) -> Iterator[Said]:
    """Processes that outlived the run."""
    places = evidence.run.generation.places
    left = {name: place.stubborn for name, place in places.items() if place.stubborn}
    if left:
        pids = "; ".join(f"{name}: {', '.join(map(str, found))}" for name, found in left.items())
        finding = death.STUBBORN.finding(
            nodes=tuple(left),
            seen=f"processes on {fold(left)} would not die: {pids}",
            fix=death.STUBBORN.fix(nodes=list(left)),
        )
        yield Cause(finding=finding, sure=Sure.LIKELY, explains="leftovers")


# All but the last explain the same end: the surest is told, and among those that are as sure, the first in this list.
DEATH_RULES: tuple[VerdictRule, ...] = (
    gpu_failed,
    *(_blame(rule, echo=True) for rule in (blame.left_early, blame.unreached, blame.missed, blame.parted)),
    _blame(blame.met_apart, echo=False),
    died,
    node_gone,
    rank_stopped,
    stubborn,
)


def _describe_death(evidence: Evidence, cause: Child) -> Finding:
    same = _same_deaths(evidence, cause)
    told = explain_death(cause, tail_of(evidence, cause), _around(evidence, cause, same))
    told = add_node(evidence, cause, told)
    told = gpu.beside_death(evidence, cause, last_words(evidence, cause), told)
    named = set(map(id, same))
    others = [child for child in evidence.run.generation.dead if id(child) not in named]
    nodes = tuple(dict.fromkeys(child.node for child in same))
    count = f"all {len(same)}" if len(same) == evidence.plan.world else f"{len(same)} of {evidence.plan.world}"
    alone = f"rank {cause.name} on {cause.node}, {cause.phase.word},"
    return told.diagnosis.finding(
        nodes=nodes,
        ranks=tuple(child.rank for child in same),
        seen=f"{alone if len(same) == 1 else f'{count} ranks on {fold(nodes)}'} {told.seen}",
        why=told.why,
        fix=join_fixes(told.fix, told.diagnosis.fix("logs", run=evidence.plan.run, rank=same[0].name)),
        consequences=tuple(_followed(evidence, cause, others)),
    )


def _same_deaths(evidence: Evidence, cause: Child) -> list[Child]:
    """The ranks that died in the same way, the cause among them, in rank order: what all do is no node's own fault."""
    own = error_of(cause, tail_of(evidence, cause))
    if own is None:
        return [cause]
    first = {part.node.name: part.starts[0].rank or 0 for part in evidence.plan.parts if part.starts}

    def names(child: Child) -> tuple[str, ...]:
        return child.node, str(child.rank), str(child.rank - first.get(child.node, 0))

    def is_same(child: Child) -> bool:
        other = error_of(child, tail_of(evidence, child)) if child.dead else None
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
        output=evidence.said.get(cause.rank, ()),
    )


def _followed(evidence: Evidence, cause: Child, others: list[Child]) -> Iterator[Finding]:
    """One line for all the ranks that died of the first one's death, or were ended because of it."""
    after = [child for child in others if child.died_at >= cause.died_at or is_echo(evidence, child)]
    if after:
        own = sorted((each for each in after if each.code is None or each.code > 0), key=attrgetter("died_at"))
        rest = len(after) - len(own)
        ended = f"{rest} {'was' if rest == 1 else 'were'} ended" if rest else ""
        alone = "itself" if len(own) == 1 else "themselves"
        died = f"{len(own)} died by {alone}, first rank {own[0].name}" if own else ""
        yield death.FOLLOWED.finding(
            nodes=tuple(sorted({child.node for child in after})),
            ranks=tuple(sorted(child.rank for child in after)),
            seen=f"of the other ranks, {', '.join(part for part in (died, ended) if part)}",
        )
