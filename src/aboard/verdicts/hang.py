"""Why a collective does not end: a rank that never came to it, one that is at another, one that has left for good."""

from collections.abc import Iterator
from dataclasses import replace

from aboard.core.evidence import Evidence, View
from aboard.core.flight import Standing
from aboard.core.phase import Phase
from aboard.core.rankset import fold_ranks
from aboard.core.verdict import Cause, RuledOut, Said, Sure
from aboard.core.witness import Collective
from aboard.core.words import many
from aboard.diagnoses import Finding, Severity, death, hang
from aboard.verdicts.doing import Doing, doing
from aboard.verdicts.stuck import RULES as STUCK

_LAST_SECONDS = 10.0
# How one waits for a process of its own.
_OWN_CHILDREN = (hang.LOCK, hang.DATA, hang.ABSENT)


def uneven(evidence: Evidence) -> Iterator[Said]:
    """Some ranks have finished, the others wait for them."""
    done = [view for view in evidence.views if view.finished]
    waiting = _waiting(evidence)
    if done and waiting and len(done) + len(waiting) == len(evidence.views):
        first = waiting[0]
        yield Cause(
            finding=hang.UNEVEN.finding(
                nodes=tuple(sorted({view.node for view in done})),
                ranks=tuple(view.rank for view in done),
                seen=f"rank {_ranks(done)} has finished, and rank {_ranks(waiting)} waits for it{_where(first)}",
                fix=hang.UNEVEN.fix(run=evidence.plan.run, rank=done[0].rank),
            ),
            sure=Sure.CERTAIN,
            since=min((view.child.at for view in done if view.child is not None), default=None),
        )


def lingering(evidence: Evidence) -> Iterator[Said]:
    """Most ranks have finished, and one that waits for nobody of them does not."""
    done = [view for view in evidence.views if view.finished]
    left = [view for view in evidence.views if view.alive]
    if not done or len(left) >= len(done) or len(done) + len(left) != len(evidence.views) or _waiting(evidence):
        return
    since = max((view.child.at for view in done if view.child is not None), default=evidence.now)
    waited = evidence.now - since
    for views in _alike(left, evidence):
        told = doing(views[0], evidence.usual, run=evidence.plan.run)
        # The last one may have more to do than the others: to write the model, to upload it.
        grave = waited >= max(_LAST_SECONDS, told.patience)
        have = "has" if len(done) == 1 else "have"
        beside = f"{many(len(done), 'rank')} {have} finished, the last of them {waited:.0f} s ago"
        why = "It has not come to its end, and no other rank keeps it from that."
        yield _held_up(views, told, beside, grave=grave, since=since, why=why)


def mismatch(evidence: Evidence) -> Iterator[Said]:
    """All are in a collective of the same number, and not in the same one."""
    for standing in evidence.standings:
        if standing.odd and standing.usual is not None:
            odd = [evidence.view(rank) for rank in standing.odd]
            entry = next(iter(standing.odd.values()))
            yield Cause(
                finding=hang.MISMATCH.finding(
                    nodes=tuple(sorted({view.node for view in odd})),
                    ranks=tuple(view.rank for view in odd),
                    seen=f"at collective {standing.number}, rank {_ranks(odd)} does {_call(entry)}{_where(odd[0])};"
                    f" the other {len(standing.waiting) - len(odd)} do {_call(standing.usual)}"
                    f"{_where(evidence.view(_usual_rank(standing)))}",
                    fix=hang.MISMATCH.fix("software"),
                ),
                sure=Sure.CERTAIN,
                since=standing.since,
            )


def crossed(evidence: Evidence) -> Iterator[Said]:
    """Two groups wait for each other's ranks: the order of calls differs."""
    for number, one in enumerate(evidence.standings):
        for other in evidence.standings[number + 1 :]:
            there = [evidence.view(rank) for rank in one.behind if rank in other.waiting]
            back = [evidence.view(rank) for rank in other.behind if rank in one.waiting]
            if len(there) > len(back):
                # The few who do otherwise are named.
                one, other, there, back = other, one, back, there  # noqa: PLW2901 - the same two, the other way round
            if there and back:
                yield Cause(
                    finding=hang.ORDER.finding(
                        nodes=tuple(sorted({view.node for view in there})),
                        ranks=tuple(view.rank for view in there),
                        seen=f"rank {_ranks(back)} waits in group {one.what or one.group}{_where(back[0])} for rank"
                        f" {_ranks(there)}, which waits in group {other.what or other.group}{_where(there[0])}",
                        fix=hang.ORDER.fix(),
                    ),
                    sure=Sure.CERTAIN,
                    since=min(each for each in (one.since, other.since) if each is not None),
                )


def absent(evidence: Evidence) -> Iterator[Said]:
    """Most are in a collective, and some never came to it: what those do instead is the cause."""
    if any(isinstance(said, Cause) for rule in STUCK for said in rule(evidence)):
        # Whoever is stopped is absent for that.
        return
    late, waiting, standing = _absent(evidence)
    if not waiting:
        yield RuledOut(what="a collective that some don't come to", why="no rank was seen to wait in one")
        return
    if not late:
        yield RuledOut(what="a rank that is not in the collective", why=f"all {len(waiting)} that were seen are in it")
        return
    waited = evidence.quiet or 0.0
    if standing is not None and standing.since is not None:
        waited = max(0.0, evidence.now - standing.since)
    for views in _alike(late, evidence):
        view = views[0]
        told = _bereft(evidence, view, doing(view, evidence.usual, run=evidence.plan.run))
        grave = waited >= told.patience
        which = (
            f"collective {standing.number} ({_call(standing.usual)})" if standing and standing.usual else "a collective"
        )
        others = "1 other rank has" if len(waiting) == 1 else f"{len(waiting)} other ranks have"
        beside = f"{others} waited {waited:.0f} s for it in {which}"
        yield _held_up(views, told, beside, grave=grave, since=standing.since if standing else None)


RULES = (uneven, lingering, mismatch, crossed, absent)


def holding(evidence: Evidence) -> list[Finding]:
    """What holds the run up by what its own ranks show, for a while or for good: for rules that have others' word."""
    said = (each for rule in (*STUCK, *RULES) for each in rule(evidence))
    return [each.finding for each in said if isinstance(each, Cause)]


def _bereft(evidence: Evidence, view: View, told: Doing) -> Doing:
    """Who waits for a process of its own, on a node where the kernel has killed one for memory, waits for that."""
    node = evidence.witness.get(view.node)
    before, after = (node.oom_before, node.oom_kills) if node is not None else (None, None)
    if told.diagnosis not in _OWN_CHILDREN or before is None or after is None or after <= before:
        return told
    killed = "a process was" if after - before == 1 else f"{after - before} processes were"
    return replace(
        told,
        diagnosis=death.OUT_OF_MEMORY,
        words=f"{told.words}, and {killed} killed for want of memory on {view.node} since the start",
        fix=death.OUT_OF_MEMORY.fix("killed", node=view.node),
    )


def _held_up(
    views: list[View], told: Doing, beside: str, *, grave: bool, since: float | None, why: str | None = None
) -> Cause:
    """Ranks that do something else, as the cause; it is only noted until it has lasted for too long."""
    nodes = tuple(dict.fromkeys(view.node for view in views))
    return Cause(
        finding=told.diagnosis.finding(
            severity=None if grave else Severity.INFO,
            nodes=nodes,
            ranks=tuple(view.rank for view in views),
            seen=f"rank {_ranks(views)} on {'/'.join(nodes)} {told.words}; {beside}",
            why=why,
            fix=told.fix,
        ),
        sure=Sure.STRONG,
        since=since,
    )


def _absent(evidence: Evidence) -> tuple[list[View], list[View], Standing | None]:
    """Who is not there, who waits, and in what: from flight records, else from stacks."""
    for standing in evidence.standings:
        behind = [evidence.view(rank) for rank in standing.behind]
        # One that is behind in this group and waits in another is no cause by itself.
        behind = [view for view in behind if view.alive and not view.open_collective]
        blind = [view for view in evidence.views if _blind(view, evidence) and view.rank not in standing.waiting]
        if behind or blind:
            return behind or blind, [evidence.view(rank) for rank in standing.waiting], standing
    waiting = _waiting(evidence)
    ready = [view for view in evidence.views if view.alive and view.phase >= Phase.GROUP]
    late = [view for view in ready if view not in waiting and view.frames and view.at != "collective"]
    return (late, waiting, None) if waiting and not evidence.standings else ([], waiting, None)


def _blind(view: View, evidence: Evidence) -> bool:
    """A rank that gave no flight record: its interpreter is held, or its torch keeps none while others' do."""
    return view.alive and view.phase >= Phase.GROUP and view.seen is not None and view.rank not in evidence.records


def _waiting(evidence: Evidence) -> list[View]:
    return [view for view in evidence.views if view.alive and (view.open_collective or view.at == "collective")]


def _alike(views: list[View], evidence: Evidence) -> list[list[View]]:
    """Ranks that do the same at the same line are one line; those that wait longest to be told come first."""
    found: dict[tuple[str, str], list[View]] = {}
    for view in views:
        told = doing(view, evidence.usual, run=evidence.plan.run)
        found.setdefault((told.diagnosis.code, str(view.site)), []).append(view)
    return list(found.values())


def _ranks(views: list[View]) -> str:
    return fold_ranks(view.rank for view in views)


def _where(view: View) -> str:
    return f" at {view.site}" if view.site is not None else ""


def _usual_rank(standing: Standing) -> int:
    return next(rank for rank in standing.waiting if rank not in standing.odd)


def _call(entry: Collective) -> str:
    """`all_reduce of [[10]]`: the backend's prefix says nothing here."""
    op = entry.op.partition(":")[2] or entry.op
    sizes = entry.sizes.partition("]]")[0].lstrip("[") if entry.sizes else ""
    return f"{op} of [{sizes}]" if sizes else op
