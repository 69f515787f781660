"""The rules over the evidence of a run that ended: the earliest death, its explanation, and its consequences."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from operator import attrgetter

from aboard.core.cluster.node import TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement, RuleResult, VerdictRule
from aboard.core.run.end_decision import is_port_taken
from aboard.core.run.event_kinds import COPY_OBSTACLES
from aboard.core.run.run_state import RankProcess, name_run
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Confidence, Finding, RunFailure, Severity, join_fixes
from aboard.diagnoses.runs import checkpoints, death
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage.pasted_commands import quote_command_line
from aboard.doctor.apply_rules import judge_by_rules
from aboard.doctor.death import gpu_failures, lost_peers
from aboard.doctor.death.container_refusals import build_refusal_finding, find_refusal
from aboard.doctor.death.explain_rank_death import (
    DeathContext,
    add_node_evidence,
    explain_rank_death,
    find_error,
    is_same_error,
)
from aboard.doctor.death.first_death import find_first_death, find_lost_node, get_tail, is_echo, read_last_words
from aboard.doctor.death.lost_agents import report_disturbances, report_lost_agents
from aboard.doctor.network import diagnoses as network
from aboard.doctor.shared.fix_commands import build_check_command

_END = "end"
_COMMAND_CHARS = 300
# The agent's mark for a command that it cut.
CUT = "…"
# Launchers that people type, unlike deepspeed.launcher.launch, which DeepSpeed's runner starts.
_TYPED: tuple[str, ...] = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds", "torch.distributed.run")
_TYPED += ("torch.distributed.launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_TYPED += ("deepspeed.launcher.runner",)
MOST_NOTICES = 5


def conclude_run(evidence: Evidence, stall: Finding | None, *, was_stopped: bool) -> Judgement:
    """Why a run ended: what stalled it, or the first death; a successful end has no finding.

    `stall` is the verdict at its end; `was_stopped` is a run that was stopped and did not die.
    """
    why = _find_cause(evidence, stall, was_stopped=was_stopped)
    return replace(why, findings=(*why.findings, *report_floods(evidence), *report_missing_copies(evidence)))


def _find_cause(evidence: Evidence, stall: Finding | None, *, was_stopped: bool) -> Judgement:
    why = Judgement() if was_stopped else judge_by_rules(evidence, DEATH_RULES)
    cause = find_first_death(evidence)
    if stall is not None and (was_stopped or (cause is not None and is_echo(evidence, cause))):
        # The stall is the cause, whichever rank gave up waiting first.
        return replace(why, findings=(replace(stall, consequences=(*stall.consequences, *why.findings)),))
    return why


def report_nested_launcher(evidence: Evidence) -> Iterator[RuleResult]:
    """A rank that started a launcher; in a world of one rank it does no harm, and is a note."""
    nested, world = evidence.run.generation.nested, evidence.plan.world
    if nested is None:
        return
    words = [word.raw() for word in nested.command]
    command = escape_text(" ".join(words), _COMMAND_CHARS)
    many = world > 1
    fix = death.NESTED.fix("launch")
    if words and words[-1] != CUT and nested.name in _TYPED:
        fix = join_fixes(death.NESTED.fix("paste", command=quote_command_line(words)), fix)
    finding = death.NESTED.finding(
        severity=Severity.BLOCK if many else Severity.INFO,
        nodes=(nested.node,),
        ranks=(int(nested.child),) if nested.child.isdigit() else (),
        seen=f"rank {nested.child} on {nested.node} started a launcher: {command}",
        why=f"Each of the {world} ranks would start a run of its own, and no rank would join this one."
        if many
        else "The launcher's ranks form a world of their own. With one rank per run, that does no harm.",
        fix=fix,
    )
    yield finding.as_cause(Confidence.CERTAIN, explains=_END if many else "nested")


def report_gpu_failure(evidence: Evidence) -> Iterator[RuleResult]:
    """The GPU failure in the kernel log that killed the first rank."""
    cause = find_first_death(evidence)
    if cause is not None:
        echo, text = is_echo(evidence, cause), read_last_words(evidence, cause)
        failure = gpu_failures.find_fatal_gpu_failure(evidence, cause, text, echo=echo)
        if failure is not None:
            finding = gpu_failures.build_gpu_death_finding(failure, _describe_death(evidence, cause))
            yield finding.as_cause(Confidence.CERTAIN, explains=_END)


def report_container_refusal(evidence: Evidence) -> Iterator[RuleResult]:
    """The container of the first rank to die, if it did not start."""
    cause = find_first_death(evidence)
    refusal = find_refusal(evidence, cause) if cause is not None else None
    if cause is not None and refusal is not None:
        finding = build_refusal_finding(evidence, refusal)
        others = [child for child in evidence.run.generation.dead if child.rank not in finding.ranks]
        followers = tuple(_describe_followers(evidence, cause, others))
        yield replace(finding, consequences=followers).as_cause(Confidence.CERTAIN, explains=_END)


def report_port_owner(evidence: Evidence) -> Iterator[RuleResult]:
    """Who listens on rank 0's port, if that ended the run."""
    owner, cause = evidence.run.generation.port_owner, find_first_death(evidence)
    if owner is None:
        return
    if owner.beside if cause is None else is_port_taken(cause, read_last_words(evidence, cause)):
        finding = network.PORT_TAKEN.finding(
            nodes=(owner.node,),
            ranks=(0,),
            seen=f"rank 0 on {owner.node} can't have port {owner.port} for itself: {owner} listens there",
            why="Ranks connect to rank 0 only if no process outside the run listens on its port. Aboard takes another"
            " port by itself unless --master-port or MASTER_PORT fixes it.",
            fix=network.PORT_TAKEN.fix("run", run=name_run(owner.run))
            if owner.run
            else network.PORT_TAKEN.fix("holder", port=owner.port, node=owner.node),
            consequences=tuple(_describe_followers(evidence, cause, evidence.run.generation.dead)) if cause else (),
        )
        yield finding.as_cause(Confidence.CERTAIN, explains=_END)


def report_first_death(evidence: Evidence) -> Iterator[RuleResult]:
    """The earliest death itself."""
    cause = find_first_death(evidence)
    if cause is not None:
        yield _describe_death(evidence, cause).as_cause(Confidence.LIKELY, explains=_END)


def _make_blame_rule(
    explain: Callable[[Evidence, RankProcess], Iterator[Finding[RunFailure]]], *, echo: bool
) -> VerdictRule:
    """Builds the rule that blames another rank or node for a first death that is, or isn't, an echo."""

    @wraps(explain)
    def rule(evidence: Evidence) -> Iterator[RuleResult]:
        cause = find_first_death(evidence)
        if cause is not None and is_echo(evidence, cause) == echo:
            for finding in explain(evidence, cause):
                followers = tuple(_describe_followers(evidence, cause, evidence.run.generation.dead))
                yield replace(finding, consequences=followers).as_cause(Confidence.STRONG, explains=_END)

    return rule


def report_lost_node(evidence: Evidence) -> Iterator[RuleResult]:
    """A node that was lost."""
    name = find_lost_node(evidence)
    if name:
        ranks = tuple(start.rank or 0 for node, start in evidence.plan.starts() if node == name)
        place = evidence.run.generation.connections[name]
        finding = death.NODE_GONE.finding(
            nodes=(name,),
            ranks=ranks,
            seen=f"{name} ({format_count(len(ranks), 'rank')}) was lost: {place.why.visible(200)}",
            fix=death.NODE_GONE.fix("job", node=name)
            if any(part.node.transport is TransportKind.SLURM for part in evidence.plan.parts)
            else death.NODE_GONE.fix(check=build_check_command(evidence, (name,), why="when it is back, launch again")),
        )
        yield finding.as_cause(Confidence.LIKELY, explains=_END)


def report_stopped_rank(evidence: Evidence) -> Iterator[RuleResult]:
    """A rank that was stopped by a signal."""
    child = evidence.run.generation.stopped
    if child is not None:
        reason = "shows what is left of it; then launch again"
        finding = death.RANK_STOPPED.finding(
            nodes=(child.node,),
            ranks=(child.rank,),
            seen=f"rank {child.name} on {child.node} was stopped (SIGSTOP) and not resumed",
            fix=death.RANK_STOPPED.fix("check", check=build_check_command(evidence, (child.node,), "host", reason)),
        )
        yield finding.as_cause(Confidence.LIKELY, explains=_END)


def report_stubborn_processes(evidence: Evidence) -> Iterator[RuleResult]:
    """Processes that outlived the run."""
    places = evidence.run.generation.connections
    processes = {name: place.stubborn for name, place in places.items() if place.stubborn}
    if processes:
        pids = "; ".join(f"{name}: {', '.join(map(str, found))}" for name, found in processes.items())
        finding = death.STUBBORN.finding(
            nodes=tuple(processes),
            seen=f"processes on {fold_names(processes)} could not be killed: {pids}",
            fix=death.STUBBORN.fix(nodes=list(processes)),
        )
        yield finding.as_cause(Confidence.LIKELY, explains="leftovers")


def report_floods(evidence: Evidence) -> Iterator[Finding]:
    """The nodes of whose events or measurements the record lacks some, or whose ranks sent damaged reports."""
    ours = {part.node.name for part in evidence.plan.parts}
    notices = {node: notice for node, notice in evidence.run.notices.items() if node in ours}
    if notices:
        seen = "; ".join(list(notices.values())[:MOST_NOTICES])
        yield death.NODE_FLOOD.finding(
            nodes=tuple(notices), seen=seen, fix=death.NODE_FLOOD.fix(nodes=list(notices)[:MOST_NOTICES])
        )
    if damaged := {name: each.malformed for name, each in evidence.snapshots.items() if each.malformed}:
        counts = ", ".join(f"{count:,} on {name}" for name, count in list(damaged.items())[:MOST_NOTICES])
        yield death.DAMAGED_REPORTS.finding(
            nodes=tuple(damaged),
            seen=f"reports of ranks that could not be read: {counts}",
            fix=death.DAMAGED_REPORTS.fix(run=evidence.plan.run),
        )


def report_missing_copies(evidence: Evidence) -> Iterator[Finding]:
    """The nodes that did not get their copies of the last checkpoint: of one obstacle, together."""
    ours = [part.node.name for part in evidence.plan.parts]
    for obstacle in COPY_OBSTACLES:
        found = {
            node: copy for node, copy in evidence.run.uncopied.items() if node in ours and copy.obstacle == obstacle
        }
        if found:
            names = fold_names(found)
            copy = next(iter(found.values()))
            seen = f"{copy.checkpoint.visible(40)} is not copied to {names}: {copy.why.visible(200)}"
            values = {"node": next(iter(found))} if obstacle == "full" else {"nodes": list(found)}
            fix = checkpoints.NOT_COPIED.fix(obstacle, **({} if obstacle == "late" else values))
            yield checkpoints.NOT_COPIED.finding(nodes=tuple(found), seen=seen, fix=fix)


# All but the last two explain the same end: the surest wins, and among equals the first in this list.
DEATH_RULES: tuple[VerdictRule, ...] = (
    report_nested_launcher,
    report_gpu_failure,
    report_container_refusal,
    report_port_owner,
    *(
        _make_blame_rule(rule, echo=True)
        for rule in (
            lost_peers.find_early_exit,
            lost_peers.find_unreachable_peer,
            lost_peers.find_missed_barrier,
            lost_peers.find_connection_reset,
        )
    ),
    _make_blame_rule(lost_peers.find_collective_mismatch, echo=False),
    report_first_death,
    report_lost_agents,
    report_lost_node,
    report_stopped_rank,
    report_stubborn_processes,
    report_disturbances,
)


def _describe_death(evidence: Evidence, cause: RankProcess) -> Finding[RunFailure]:
    same = _find_same_deaths(evidence, cause)
    found = explain_rank_death(cause, get_tail(evidence, cause), _build_context(evidence, cause, same))
    found = add_node_evidence(evidence, cause, found)
    found = gpu_failures.add_gpu_errors(evidence, cause, read_last_words(evidence, cause), found)
    named = set(map(id, same))
    others = [child for child in evidence.run.generation.dead if id(child) not in named]
    nodes = tuple(dict.fromkeys(child.node for child in same))
    count = f"all {len(same)}" if len(same) == evidence.plan.world else f"{len(same)} of {evidence.plan.world}"
    alone = f"rank {cause.name} on {cause.node}, {cause.phase.label},"
    # As a new one, which escapes what was added.
    return found.diagnosis.finding(
        nodes=nodes,
        ranks=tuple(child.rank for child in same),
        seen=f"{alone if len(same) == 1 else f'{count} ranks on {fold_names(nodes)}'} {found.seen}",
        why=found.why,
        fix=join_fixes(found.fix, found.diagnosis.fix("logs", run=evidence.plan.run, rank=same[0].name)),
        consequences=tuple(_describe_followers(evidence, cause, others)),
    )


def _find_same_deaths(evidence: Evidence, cause: RankProcess) -> list[RankProcess]:
    """The ranks that died in the same way, the cause among them, in rank order."""
    own = find_error(cause, get_tail(evidence, cause))
    if own is None:
        return [cause]
    first = {part.node.name: part.starts[0].rank or 0 for part in evidence.plan.parts if part.starts}

    def names(process: RankProcess) -> tuple[str, ...]:
        return process.node, str(process.rank), str(process.rank - first.get(process.node, 0))

    def is_same(process: RankProcess) -> bool:
        other = find_error(process, get_tail(evidence, process)) if process.dead else None
        return other is not None and is_same_error(own, other, list(zip(names(cause), names(process), strict=True)))

    children = (view.child for view in evidence.views if view.child is not None)
    return [child for child in children if child is cause or is_same(child)]


def _build_context(evidence: Evidence, cause: RankProcess, same: list[RankProcess]) -> DeathContext:
    """The nodes of the ranks that died, and one on which no rank has died in the same way."""
    nodes = {child.node for child in same}
    others = [part.node.name for part in evidence.plan.parts if part.node.name not in nodes]
    return DeathContext(
        parts=tuple(part for part in evidence.plan.parts if part.node.name in nodes),
        peer=others[0] if others else "",
        several=len(same) > 1,
        output=evidence.last_lines.get(cause.rank, ()),
    )


def _describe_followers(evidence: Evidence, cause: RankProcess, others: list[RankProcess]) -> Iterator[Finding]:
    """One finding for all ranks that died of the first death or were terminated because of it."""
    after = [child for child in others if child.died_at >= cause.died_at or is_echo(evidence, child)]
    if after:
        own = sorted((each for each in after if each.code is None or each.code > 0), key=attrgetter("died_at"))
        rest = len(after) - len(own)
        ended = f"{rest} {'was' if rest == 1 else 'were'} terminated" if rest else ""
        alone = "its" if len(own) == 1 else "their"
        died = f"{len(own)} died on {alone} own (rank {own[0].name} first)" if own else ""
        yield death.FOLLOWED.finding(
            nodes=tuple(sorted({child.node for child in after})),
            ranks=tuple(sorted(child.rank for child in after)),
            seen=f"of the other ranks, {', '.join(part for part in (died, ended) if part)}",
        )
