"""Why a collective does not finish: a rank that never entered it, one in another collective, or one that exited."""

from collections.abc import Iterator
from dataclasses import replace

from aboard.core.evidence.flight_records import GroupProgress
from aboard.core.evidence.node_snapshot import CollectiveRecord
from aboard.core.evidence.run_evidence import Evidence, RankView, list_ranks
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.run.rank_phases import Phase
from aboard.core.text.input_text import agree, format_count
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Cause, Confidence, Finding, Severity
from aboard.diagnoses.runs import death
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.hang.rank_activity import RankActivity, describe_activity
from aboard.doctor.hang.stuck_ranks import RULES as STUCK

_LAST_SECONDS = 10.0
PAIR = 2
# Waits that may be for a child process.
_OWN_CHILDREN = (hang.LOCK, hang.DATA, hang.ABSENT)


def find_early_finishers(evidence: Evidence) -> Iterator[RuleResult]:
    """Some ranks have finished, and the others wait for them."""
    done = [view for view in evidence.views if view.finished]
    waiting = _list_waiting_ranks(evidence)
    if done and waiting and len(done) + len(waiting) == len(evidence.views):
        first = waiting[0]
        yield hang.UNEVEN.finding(
            nodes=tuple(sorted({view.node for view in done})),
            ranks=tuple(view.rank for view in done),
            seen=f"{name_ranks(list_ranks(done))} {agree(done, 'has', 'have')} finished;"
            f" {name_ranks(list_ranks(waiting))} {agree(waiting, 'is', 'are')} still waiting for"
            f" {agree(done, 'it', 'them')}{_format_site(first)}",
            fix=hang.UNEVEN.fix(run=evidence.plan.run, rank=done[0].rank),
        ).as_cause(
            Confidence.CERTAIN, since=min((view.child.at for view in done if view.child is not None), default=None)
        )


def find_lingering_ranks(evidence: Evidence) -> Iterator[RuleResult]:
    """Most ranks have finished, and one that doesn't wait for them hasn't."""
    done = [view for view in evidence.views if view.finished]
    remaining = [view for view in evidence.views if view.alive]
    if (
        not done
        or len(remaining) >= len(done)
        or len(done) + len(remaining) != len(evidence.views)
        or _list_waiting_ranks(evidence)
    ):
        return
    since = max((view.child.at for view in done if view.child is not None), default=evidence.now)
    waited = evidence.now - since
    for views in _group_by_activity(remaining, evidence):
        activity = describe_activity(views[0], evidence.usual, run=evidence.plan.run)
        # The last rank may have more to do than the others: write or upload the model.
        grave = waited >= max(_LAST_SECONDS, activity.patience)
        finished = f"{format_count(len(done), 'rank')} {agree(done, 'has', 'have')} finished"
        beside = f"{finished}, the last of them {waited:.0f} s ago"
        which, them = agree(views, "The rank has", "These ranks have"), agree(views, "it", "them")
        why = f"{which} not exited, and no other rank is holding {them} up."
        yield _build_hang_cause(views, activity, beside, grave=grave, since=since, why=why)


def find_collective_mismatch(evidence: Evidence) -> Iterator[RuleResult]:
    """All ranks are at the same sequence number, but not in the same collective."""
    for progress in evidence.group_progress:
        if progress.odd and progress.usual is not None:
            odd = [evidence.view(rank) for rank in progress.odd]
            entry = next(iter(progress.odd.values()))
            others = len(progress.waiting) - len(odd)
            types = entry.types != progress.usual.types
            # Of two ranks there is no majority: either may be wrong.
            named = [evidence.view(rank) for rank in progress.waiting] if len(progress.waiting) == PAIR else odd
            yield hang.MISMATCH.finding(
                nodes=tuple(sorted({view.node for view in named})),
                ranks=tuple(view.rank for view in named),
                seen=f"{name_ranks(list_ranks(odd))} issued {format_collective(entry, types=types)}"
                f" (sequence number {progress.number}){_format_site(odd[0])};"
                f" the other {'rank' if others == 1 else f'{others} ranks'} issued"
                f" {format_collective(progress.usual, types=types)}"
                f"{_format_site(evidence.view(_find_usual_rank(progress)))}",
                fix=hang.MISMATCH.fix("software"),
            ).as_cause(Confidence.CERTAIN, since=progress.since)


def find_crossed_groups(evidence: Evidence) -> Iterator[RuleResult]:
    """Two groups wait for each other's ranks: the order of calls differs."""
    for number, one in enumerate(evidence.group_progress):
        for other in evidence.group_progress[number + 1 :]:
            there = [evidence.view(rank) for rank in one.behind if rank in other.waiting]
            back = [evidence.view(rank) for rank in other.behind if rank in one.waiting]
            if len(there) > len(back):
                # The minority is blamed.
                one, other, there, back = other, one, back, there  # noqa: PLW2901 - the same two, the other way round
            if there and back:
                yield hang.ORDER.finding(
                    nodes=tuple(sorted({view.node for view in there})),
                    ranks=tuple(view.rank for view in there),
                    seen=f"{name_ranks(list_ranks(back))} {agree(back, 'is', 'are')} waiting in group"
                    f" {one.what or one.group}{_format_site(back[0])} for"
                    f" {name_ranks(list_ranks(there))}, which {agree(there, 'is', 'are')} waiting in group"
                    f" {other.what or other.group}{_format_site(there[0])}",
                    fix=hang.ORDER.fix(),
                ).as_cause(Confidence.CERTAIN, since=min(each for each in (one.since, other.since) if each is not None))


def find_absent_ranks(evidence: Evidence) -> Iterator[RuleResult]:
    """Most ranks are in a collective that some never entered: what those do instead is the cause."""
    if any(isinstance(result, Cause) for rule in STUCK for result in rule(evidence)):
        # A stopped rank is absent because it is stopped.
        return
    late, waiting, progress = _find_absent_and_waiting(evidence)
    if not waiting:
        yield RuledOut(what="a collective that some ranks never enter", why="no rank was observed waiting in one")
        return
    if not late:
        yield RuledOut(what="a rank missing from the collective", why=f"all {len(waiting)} observed ranks are in it")
        return
    waited = evidence.quiet or 0.0
    if progress is not None and progress.since is not None:
        waited = max(0.0, evidence.now - progress.since)
    for views in _group_by_activity(late, evidence):
        view = views[0]
        activity = _add_oom_kill(evidence, view, describe_activity(view, evidence.usual, run=evidence.plan.run))
        grave = waited >= activity.patience
        which = (
            f"collective {progress.number} ({format_collective(progress.usual)})"
            if progress and progress.usual
            else "a collective"
        )
        others = "1 other rank has" if len(waiting) == 1 else f"{len(waiting)} other ranks have"
        beside = f"{others} waited {waited:.0f} s for {agree(views, 'it', 'them')} in {which}"
        yield _build_hang_cause(views, activity, beside, grave=grave, since=progress.since if progress else None)


RULES = (find_early_finishers, find_lingering_ranks, find_collective_mismatch, find_crossed_groups, find_absent_ranks)


def list_hang_findings(evidence: Evidence) -> list[Finding]:
    """What stalls the run according to its ranks, for rules that use other sources."""
    results = (each for rule in (*STUCK, *RULES) for each in rule(evidence))
    return [each for each in results if isinstance(each, Cause)]


def _add_oom_kill(evidence: Evidence, view: RankView, activity: RankActivity) -> RankActivity:
    """A rank that waits for a child process, on a node where the kernel OOM-killed one, waits for that process."""
    node = evidence.snapshots.get(view.node)
    before, after = (node.oom_before, node.oom_kills) if node is not None else (None, None)
    if activity.diagnosis not in _OWN_CHILDREN or before is None or after is None or after <= before:
        return activity
    killed = "a process has" if after - before == 1 else f"{after - before} processes have"
    return replace(
        activity,
        diagnosis=death.OUT_OF_MEMORY,
        description=f"{activity.description}, and {killed} been OOM-killed on {view.node} since the start",
        fix=death.OUT_OF_MEMORY.fix("killed", node=view.node),
    )


def _build_hang_cause(
    views: list[RankView],
    activity: RankActivity,
    beside: str,
    *,
    grave: bool,
    since: float | None,
    why: str | None = None,
) -> Cause:
    """Ranks that do something else, as the cause; information only until it lasts too long."""
    nodes = tuple(dict.fromkeys(view.node for view in views))
    return activity.diagnosis.finding(
        severity=None if grave else Severity.INFO,
        nodes=nodes,
        ranks=tuple(view.rank for view in views),
        seen=f"{name_ranks(list_ranks(views))} on {'/'.join(nodes)} {agree(views, 'is', 'are')}"
        f" {activity.description};"
        f" {beside}",
        why=why,
        fix=activity.fix,
    ).as_cause(Confidence.STRONG, since=since)


def _find_absent_and_waiting(evidence: Evidence) -> tuple[list[RankView], list[RankView], GroupProgress | None]:
    """The absent ranks, the waiting ranks, and the collective: from flight records, else from stacks."""
    for progress in evidence.group_progress:
        behind = [evidence.view(rank) for rank in progress.behind]
        # A rank that is behind in this group but waits in another is no cause by itself.
        behind = [view for view in behind if view.alive and not view.open_collective]
        blind = [
            view for view in evidence.views if _has_no_record(view, evidence) and view.rank not in progress.waiting
        ]
        if behind or blind:
            return behind or blind, [evidence.view(rank) for rank in progress.waiting], progress
    waiting = _list_waiting_ranks(evidence)
    ready = [view for view in evidence.views if view.alive and view.phase >= Phase.GROUP]
    late = [view for view in ready if view not in waiting and view.frames and view.at != "collective"]
    return (late, waiting, None) if waiting and not evidence.group_progress else ([], waiting, None)


def _has_no_record(view: RankView, evidence: Evidence) -> bool:
    """Whether a rank gave no flight record: its interpreter is blocked, or its torch keeps none."""
    return view.alive and view.phase >= Phase.GROUP and view.seen is not None and view.rank not in evidence.records


def _list_waiting_ranks(evidence: Evidence) -> list[RankView]:
    return [view for view in evidence.views if view.alive and (view.open_collective or view.at == "collective")]


def _group_by_activity(views: list[RankView], evidence: Evidence) -> list[list[RankView]]:
    """Groups ranks that do the same at the same line."""
    found: dict[tuple[str, str], list[RankView]] = {}
    for view in views:
        activity = describe_activity(view, evidence.usual, run=evidence.plan.run)
        found.setdefault((activity.diagnosis.code, str(view.site)), []).append(view)
    return list(found.values())


def _format_site(view: RankView) -> str:
    return f" at {view.site}" if view.site is not None else ""


def _find_usual_rank(progress: GroupProgress) -> int:
    return next(rank for rank in progress.waiting if rank not in progress.odd)


def format_collective(record: CollectiveRecord, *, types: bool = False) -> str:
    """`all_reduce of [10]`, without the backend's prefix; `barrier()` without tensors, `… of [10] Float` with types."""
    op = record.op.partition(":")[2] or record.op
    if not any(map(str.isdigit, record.sizes)):
        return f"{op}()" if record.sizes else op
    kind = f" {record.types[0]}" if types and record.types else ""
    return f"{op} of [{record.sizes.partition(']')[0].lstrip('[')}]{kind}"
