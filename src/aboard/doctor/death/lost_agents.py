"""The verdict on a run that ended because one of Aboard's own processes was killed, stopped or cut off."""

from collections.abc import Iterator
from operator import itemgetter

from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuleResult
from aboard.core.run.run_state import Generation, SupervisorEnd
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Confidence, Finding, RunFailure, Severity, join_fixes
from aboard.diagnoses.runs import death
from aboard.doctor.death.explain_rank_death import name_signal
from aboard.doctor.death.first_death import find_first_death
from aboard.doctor.shared.fix_commands import build_check_command

_AGENTS = {
    "supervisor": "the supervisor",
    "guard": "the supervisor's guard process",
    "bridge": "the agent's connection to the head (its bridge process)",
}


def report_lost_agents(evidence: Evidence) -> Iterator[RuleResult]:
    """A supervisor or guard that was killed, or a lease that expired: what ended the ranks of a node."""
    generation = evidence.run.generation
    ends = generation.supervisor_ends
    silent = {node for node, end in ends.items() if end.cause == "lease"}
    if generation.paused:
        silent |= {node for node in generation.lost if node not in ends}
    killed = {node: end for node, end in ends.items() if node not in silent}
    found = [(end.at, _build_killed_finding(evidence, node, end)) for node, end in killed.items()]
    if silent:
        at = min((ends[node].at for node in silent if node in ends), default=float("inf"))
        found.append((at, _build_lease_finding(evidence, tuple(sorted(silent)))))
    # The first ended the run, unless a rank had died before; the others happened as well.
    explained = find_first_death(evidence) is not None
    for place, (_at, finding) in enumerate(sorted(found, key=itemgetter(0))):
        if explained or place:
            yield finding.as_cause(Confidence.LIKELY, explains=f"agents {place}")
        else:
            yield finding.as_cause(Confidence.CERTAIN, explains="end")


def report_disturbances(evidence: Evidence) -> Iterator[RuleResult]:
    """What was stopped or killed without harm: Aboard continued or replaced it."""
    generation = evidence.run.generation
    found = []
    for (node, process, kind), count in generation.disturbances.items():
        often = f" {count} times" if count > 1 else ""
        what = f"{_AGENTS[process]} on {node}"
        seen = (
            f"{what} was stopped by a signal{often}; Aboard continued it"
            if kind == "continued"
            else f"{what} was killed{often}; the conductor {_describe_reconnect(generation, node)}"
        )
        fix = death.AGENT_DISTURBED.fix(node=node)
        found.append(death.AGENT_DISTURBED.finding(nodes=(node,), seen=seen, fix=fix))
    if generation.paused and not generation.supervisor_ends and not generation.lost:
        seen, fix = _describe_pause(generation), death.HEAD_PAUSED.fix()
        found.append(death.HEAD_PAUSED.finding(severity=Severity.INFO, nodes=(), seen=seen, fix=fix))
    for place, finding in enumerate(found):
        # Findings of their own: they neither follow from the cause nor explain it.
        yield finding.as_cause(Confidence.LIKELY, explains=f"disturbance {place}")


def _build_lease_finding(evidence: Evidence, nodes: tuple[str, ...]) -> Finding[RunFailure]:
    generation = evidence.run.generation
    ranks = tuple(start.rank or 0 for node, start in evidence.plan.starts() if node in nodes)
    stated = [generation.supervisor_ends[node].why.visible(200) for node in nodes if node in generation.supervisor_ends]
    why = f" ({stated[0]})" if stated else ""
    ended = f"{fold_names(nodes)} got no message from the conductor, and terminated all ranks there{why}"
    if generation.paused:
        seen = f"{_describe_pause(generation)}; meanwhile {ended}"
        return death.HEAD_PAUSED.finding(nodes=nodes, ranks=ranks, seen=seen, fix=death.HEAD_PAUSED.fix())
    check = build_check_command(evidence, nodes, "network", "then launch again, with a longer --lease if needed")
    return death.LEASE_EXPIRED.finding(nodes=nodes, ranks=ranks, seen=ended, fix=death.LEASE_EXPIRED.fix(check=check))


def _build_killed_finding(evidence: Evidence, node: str, end: SupervisorEnd) -> Finding[RunFailure]:
    ranks = tuple(start.rank or 0 for name, start in evidence.plan.starts() if name == node)
    if end.cause == "killed":
        both = "guard" in end.agents
        signals = sorted({number for number in end.agents.values() if number})
        by = f" by {' and '.join(map(name_signal, signals))}" if signals else ""
        killed = "the supervisor and its guard process" if both else "the supervisor"
        saver = "the agent" if both else "its guard process"
        seen = f"{killed} on {node} {'were' if both else 'was'} killed{by}; {saver} ended {_count_ranks(ranks)}"
    elif end.cause == "guard":
        seen = f"the supervisor's guard process on {node} was killed; the supervisor ended {_count_ranks(ranks)}"
    else:
        seen = f"on {node}, {end.why.visible(200)} and ended {_count_ranks(ranks)}"
    check = build_check_command(evidence, (node,), "host", "is anything left of the run? if not, launch again")
    return death.AGENT_KILLED.finding(
        nodes=(node,),
        ranks=ranks,
        seen=seen,
        fix=join_fixes(death.AGENT_KILLED.fix("memory", node=node), death.AGENT_KILLED.fix("check", check=check)),
    )


def _count_ranks(ranks: tuple[int, ...]) -> str:
    return "its rank" if len(ranks) == 1 else f"its {len(ranks)} ranks"


def _describe_pause(generation: Generation) -> str:
    return (
        f"the conductor (the `aboard` process on this machine) did not run for {format_duration(generation.paused)}:"
        " a signal stopped it, the machine was suspended or out of memory, or its disk did not answer"
    )


def _describe_reconnect(generation: Generation, node: str) -> str:
    connection = generation.connections.get(node)
    return "connected again" if connection is not None and connection.state == "held" else "did not connect again"
