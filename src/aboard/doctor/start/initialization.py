"""Why ranks don't join: late or silent nodes, ranks that never reach the store, a wrong world size."""

from collections.abc import Iterator

from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence, RankView, list_nodes, list_ranks
from aboard.core.evidence.verdict import RuleResult
from aboard.core.run.rank_phases import Phase
from aboard.core.text.input_text import agree, format_count
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Confidence, Severity
from aboard.diagnoses.runs import death
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.hang.rank_activity import describe_activity
from aboard.doctor.shared.fix_commands import build_check_command
from aboard.doctor.start import diagnoses as rendezvous

# Report a node that hasn't connected after this long; logins take seconds.
_NODE_SECONDS = 8.0
# A management network may flap while all ranks continue. Once the others wait, a node cut off before is silent.
_SILENT_SECONDS = 10.0
_DARK_SECONDS = 1.0
_WAIT_SECONDS = 3.0
_LATE_SECONDS = 8.0
# An idle import gets more time than a package may sleep. A busy one is reported as slow, never as stuck.
_IMPORT_SECONDS = 20.0
_BUSY_SECONDS = 25.0


def find_silent_nodes(evidence: Evidence) -> Iterator[RuleResult]:
    """Nodes that send nothing, while the others wait for their ranks."""
    for name, place in evidence.run.generation.connections.items():
        seconds = evidence.now - place.at
        if place.state == "cut" and seconds >= _DARK_SECONDS:
            ranks = tuple(view.rank for view in evidence.views if view.node == name)
            yield death.NODE_SILENT.finding(
                severity=Severity.WARN
                if seconds >= _SILENT_SECONDS or _is_collective_waiting(evidence)
                else Severity.INFO,
                nodes=(name,),
                ranks=ranks,
                seen=f"{name} has sent nothing for {seconds:.0f} s: {place.why.visible(200)}",
                fix=death.NODE_SILENT.fix(
                    check=build_check_command(
                        evidence, (name,), why="if it does not respond, check its power or its console"
                    )
                ),
            ).as_cause(Confidence.STRONG, since=place.at)
    late = [part.node.name for part in evidence.plan.parts if part.node.name not in evidence.run.generation.connections]
    seconds = evidence.now - evidence.run.generation.at
    if late and seconds >= _NODE_SECONDS:
        yield rendezvous.NODE_LATE.finding(
            nodes=tuple(late),
            seen=f"{fold_names(late)} {agree(late, 'has', 'have')} not connected after {seconds:.0f} s",
            fix=rendezvous.NODE_LATE.fix(
                check=build_check_command(evidence, late, "reach", "shows how far a login gets")
            ),
        ).as_cause(Confidence.STRONG, since=evidence.run.generation.at)


def find_wrong_world_size(evidence: Evidence) -> Iterator[RuleResult]:
    """A script that requests another world size than the run has waits forever."""
    wrong = [
        (view, view.seen.joining)
        for view in evidence.views
        if view.alive and view.phase < Phase.GROUP and view.seen is not None and view.seen.joining is not None
    ]
    odd = [(view, joining) for view, joining in wrong if joining.world not in (None, evidence.plan.world)]
    if odd:
        views = [view for view, _joining in odd]
        yield rendezvous.WORLD.finding(
            nodes=list_nodes(views),
            ranks=list_ranks(views),
            seen=f"{name_ranks(list_ranks(views))} {agree(views, 'requests', 'request')} a world size of"
            f" {odd[0][1].world}"
            f"{_format_site(views[0])}; the run has {format_count(evidence.plan.world, 'rank')}",
            fix=rendezvous.WORLD.fix(),
        ).as_cause(Confidence.CERTAIN)


def find_duplicate_ranks(evidence: Evidence) -> Iterator[RuleResult]:
    """Two processes join as the same rank, so another rank is missing and all wait for it."""
    joined: dict[int, list[RankView]] = {}
    for view in evidence.views:
        joining = view.seen.joining if view.alive and view.phase < Phase.COLLECTIVE and view.seen is not None else None
        if joining is not None and joining.rank is not None:
            joined.setdefault(joining.rank, []).append(view)
    for rank, views in joined.items():
        wrong = [view for view in views if view.rank != rank]
        if len(views) > 1 and wrong:
            missing = sorted({view.rank for view in evidence.views} - set(joined))
            yield rendezvous.RANK_TWICE.finding(
                nodes=list_nodes(wrong),
                ranks=list_ranks(wrong),
                seen=f"{len(views)} processes are joining as rank {rank}, among them"
                f" {name_ranks(list_ranks(wrong))} on {fold_names(list_nodes(wrong))}{_format_site(wrong[0])};"
                f" no process is joining as {name_ranks(missing)}",
                fix=rendezvous.RANK_TWICE.fix(),
            ).as_cause(Confidence.CERTAIN)


def find_late_ranks(evidence: Evidence) -> Iterator[RuleResult]:
    """Some ranks have reached the store or the group, and others haven't: reports what those do."""
    alive = [view for view in evidence.views if view.alive]
    ahead = [view for view in alive if view.phase >= Phase.STORE or (view.seen is not None and view.seen.joining)]
    # What ranks do on a node that does not respond is unknown.
    answering = [view for view in alive if view not in ahead and view.node not in evidence.unheard]
    behind = [view for view in answering if view.phase >= Phase.STARTED]
    if not ahead or not behind or any(view.phase >= Phase.COLLECTIVE for view in alive):
        return
    for views in _group_by_place(behind):
        view = views[0]
        activity = describe_activity(view, None, run=evidence.plan.run)
        busy = activity.diagnosis is hang.LOOP or "D" in view.states
        importing = view.at == "import" or (view.phase < Phase.TORCH and busy)
        since = max((each.child.since for each in views if each.child is not None), default=evidence.now)
        waited = min(evidence.now - since, evidence.quiet if evidence.quiet is not None else evidence.now - since)
        patience = _BUSY_SECONDS if busy else _IMPORT_SECONDS if importing else _LATE_SECONDS
        grave = waited >= patience
        yield (
            (rendezvous.IMPORT_SLOW if importing else rendezvous.RANK_LATE)
            .finding(
                severity=(Severity.WARN if importing or busy else Severity.BLOCK) if grave else Severity.INFO,
                nodes=list_nodes(views),
                ranks=list_ranks(views),
                seen=f"{name_ranks(list_ranks(views))} on {fold_names(list_nodes(views))}, {view.phase.label},"
                f" {agree(views, 'is', 'are')} {activity.description}; {format_count(len(ahead), 'other rank')}"
                f" {agree(ahead, 'is', 'are')} waiting for {agree(views, 'it', 'them')} to join",
                fix=activity.fix,
            )
            .as_cause(Confidence.STRONG, since=since)
        )


RULES = (find_silent_nodes, find_wrong_world_size, find_duplicate_ranks, find_late_ranks)


def _is_collective_waiting(evidence: Evidence) -> bool:
    """Whether the responding ranks wait in a collective."""
    began = [progress.since for progress in evidence.group_progress if progress.waiting and progress.since is not None]
    return any(evidence.now - since >= _WAIT_SECONDS for since in began)


def _group_by_place(views: list[RankView]) -> list[list[RankView]]:
    found: dict[tuple[int, str, str], list[RankView]] = {}
    for view in views:
        found.setdefault((view.phase, view.at, str(view.site)), []).append(view)
    return list(found.values())


def _format_site(view: RankView) -> str:
    return f" at {view.site}" if view.site is not None else ""
