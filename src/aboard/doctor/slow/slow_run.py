"""Why a run is slow: the rank that is last at every collective and its cause, or a slow link."""

from collections import Counter
from collections.abc import Iterator

from aboard.core.evidence.flight_records import find_straggler, measure_lateness, summarize_long_waits
from aboard.core.evidence.follow_up_queries import is_stalled
from aboard.core.evidence.node_snapshot import NodeSnapshot, split_endpoint
from aboard.core.evidence.run_evidence import Evidence, RankView
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.run.rank_phases import Phase
from aboard.core.text.durations import format_latency
from aboard.diagnoses import Confidence, Fix, RunFailure, Severity
from aboard.doctor.shared.fix_commands import build_check_command
from aboard.doctor.slow import diagnoses as slow

# Report a rank that costs all others this share of their time; node clocks agree to some milliseconds.
_SHARE = 0.25
_LEAST_SECONDS = 0.03
# Without progress for this long and some steps, the run is stuck, not slow.
_STUCK_SECONDS = 2.5
_THROTTLED = 0.05
_RATIONED = 0.8
_DELAY = 0.4
_DISK = 0.3
_NEIGHBOUR = 0.5
# A queue in the network: round trips this many times the minimum, and at least this long.
_LONGER, _LONG_SECONDS = 8.0, 0.02
_LOSSES, _LEAST_LOSSES = 0.01, 20
_LEAST_WAITING = 16 * 1024


def find_stragglers(evidence: Evidence) -> Iterator[RuleResult]:
    """The rank that is last again and again, by how much, and why."""
    if not _has_steps(evidence) or _is_stuck(evidence):
        return
    found = measure_lateness(evidence.records, evidence.offsets)
    if found is None:
        yield RuledOut(what="a slow rank", why="the flight records contain too few collectives to compare ranks")
        return
    named = find_straggler(found)
    rank, extra = named if named is not None else (0, 0.0)
    share = extra / max(found.seconds, extra, 1e-6)
    if share < _SHARE or extra < _LEAST_SECONDS:
        most = f"rank {rank} arrived {1000 * extra:.0f} ms later than the others on average"
        yield RuledOut(what="a slow rank", why=f"{most}, over {found.count} collectives")
        return
    view = evidence.view(rank)
    diagnosis, cause, fix = _explain_straggler(view, evidence.snapshots[view.node])
    times, wait, waited = summarize_long_waits(found, rank)
    yield diagnosis.finding(
        severity=Severity.WARN if _is_slower(evidence) or share >= 2 * _SHARE else Severity.INFO,
        nodes=(view.node,),
        ranks=(rank,),
        seen=f"rank {rank} on {view.node} arrived {format_latency(wait)} later than the others at {times} of the"
        f" last {found.count} collectives, and they waited for it for {100 * waited:.0f} % of that time;"
        f" {cause}{_format_pace(evidence)}",
        why="In each collective, all ranks wait for the slowest one, so the whole run is as slow as this rank.",
        fix=fix,
    ).as_cause(Confidence.LIKELY)


def find_throttled_nodes(evidence: Evidence) -> Iterator[RuleResult]:
    """A node whose control group is throttled in nearly every period; it may be too slow to reply."""
    for part in evidence.plan.parts:
        node = part.node.name
        sample = evidence.run.samples.get((node, ""))
        throttled = sample.values.get("throttled", 0.0) if sample is not None else 0.0
        if not _has_steps(evidence) or throttled < _RATIONED:
            continue
        ranks = tuple(start.rank for start in part.starts if start.rank is not None)
        waits = _is_slower(evidence) or _is_stuck(evidence)
        yield slow.THROTTLED.finding(
            severity=Severity.WARN if waits else Severity.INFO,
            nodes=(node,),
            ranks=ranks,
            seen=f"the run's cgroup on {node} was throttled in {100 * throttled:.0f} % of its latest scheduling"
            f" periods{_format_pace(evidence)}",
            fix=_build_quota_fix(evidence.snapshots.get(node), node),
        ).as_cause(Confidence.CERTAIN if waits else Confidence.LIKELY)


def find_slow_links(evidence: Evidence) -> Iterator[RuleResult]:
    """Ranks arrive together, but their data is queued or lost on the way."""
    if not _has_steps(evidence):
        return
    ends: Counter[str] = Counter()
    pairs: list[tuple[str, str]] = []
    worst: tuple[float, str] = (0.0, "")
    for view in evidence.views:
        for each in view.seen.sockets if view.seen is not None else ():
            peer = evidence.owners.get(split_endpoint(each.remote)[0])
            if peer in (None, view.node) or each.rtt is None or is_stalled(each):
                continue
            lossy = (each.losses or 0) >= _LEAST_LOSSES and (each.losses or 0) >= _LOSSES * (each.segments or 1)
            queued = each.tx >= _LEAST_WAITING and each.rtt >= max(_LONG_SECONDS, _LONGER * (each.least_rtt or 0.0))
            if queued or (lossy and each.tx):
                ends.update((view.node, str(peer)))
                pairs.append((view.node, str(peer)))
                lost = f", {each.losses:,} of {each.segments:,} segments retransmitted" if each.losses else ""
                description = (
                    f"rank {view.rank} on {view.node} has {each.tx:,} bytes queued for {peer}; round-trip time"
                    f" {format_latency(each.rtt)} (minimum {format_latency(each.least_rtt or 0.0)}){lost}"
                )
                worst = max(worst, (each.rtt, description))
    if not ends:
        yield RuledOut(what="a slow link", why="no connection has queued data and long round trips or losses")
        return
    most = max(ends.values())
    nodes = tuple(sorted(name for name, count in ends.items() if count == most))
    # Measuring a link takes both ends.
    both, reason = (*nodes, *_find_far_end(pairs, nodes)), "measures the link; then check the NIC and cable"
    yield slow.LINK.finding(
        severity=Severity.WARN if _is_slower(evidence) else Severity.INFO,
        nodes=nodes,
        seen=f"{worst[1]}{_format_link_rate(evidence, nodes)}{_format_pace(evidence)}",
        fix=slow.LINK.fix("check", check=build_check_command(evidence, both, "network", reason)),
    ).as_cause(Confidence.LIKELY)


RULES = (find_stragglers, find_throttled_nodes, find_slow_links)


def _find_far_end(pairs: list[tuple[str, str]], nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Both ends of the first link that involves these nodes."""
    return next((pair for pair in pairs if pair[0] in nodes or pair[1] in nodes), ())


def _explain_straggler(view: RankView, node: NodeSnapshot) -> tuple[RunFailure, str, Fix]:
    """Why a rank is slow, from measurements on its node."""
    snapshot = view.seen
    process = snapshot.process if snapshot is not None else None
    neighbour = node.neighbours[0] if node.neighbours else None
    if node.throttled is not None and node.throttled >= _THROTTLED:
        return (
            slow.THROTTLED,
            f"its cgroup was throttled in {100 * node.throttled:.0f} % of its scheduling periods",
            _build_quota_fix(node, view.node),
        )
    disk = view.states.count("D") / max(1, len(view.states))
    if disk >= _DISK:
        where = process.file.visible() if process is not None and process.file.startswith("/") else "its disk"
        return slow.DISK, f"it is waiting for {where}", slow.DISK.fix(node=view.node)
    delay = process.delay if process is not None else 0.0
    if delay >= _DELAY and neighbour is not None and neighbour.cores >= _NEIGHBOUR:
        busy = f"{neighbour.name.visible()} (pid {neighbour.pid})"
        return (
            slow.NEIGHBOUR,
            f"its threads are waiting for {delay:.1f} cores; {busy} uses {neighbour.cores:.1f}",
            slow.NEIGHBOUR.fix(pid=neighbour.pid, node=view.node),
        )
    if view.at == "data":
        where = f" at {view.site}" if view.site is not None else ""
        return slow.DATA, f"it is waiting for data{where}", slow.DATA.fix()
    where = f"; it was seen at {view.site}" if view.site is not None else ""
    return (
        slow.RANK,
        f"it uses {view.cpu:.1f} cores{where}",
        slow.RANK.fix(pid=process.pid if process else 0, node=view.node),
    )


def _build_quota_fix(snapshot: NodeSnapshot | None, name: str) -> Fix:
    """The fix for a quota; version 2 has quota and period in one file, version 1 a file for each: cgroups(7)."""
    if snapshot is None or not snapshot.quota:
        return slow.THROTTLED.fix("group", node=name)
    variant = "quota-v1" if snapshot.quota.endswith("cfs_quota_us") else "quota"
    return slow.THROTTLED.fix(variant, file=snapshot.quota, node=name)


def _format_link_rate(evidence: Evidence, nodes: tuple[str, ...]) -> str:
    """The throughput of the first node's busiest NIC."""
    links = [(link.sent + link.received, link.name) for link in evidence.snapshots[nodes[0]].links] if nodes else []
    if not links:
        return ""
    rate, name = max(links)
    return f"; {name} on {nodes[0]} carries {8 * rate / 1e6:.0f} Mbit/s"


def _format_pace(evidence: Evidence) -> str:
    if evidence.pace is None or evidence.usual is None:
        return ""
    if _is_slower(evidence):
        return f"; a step now takes {format_latency(evidence.pace)} instead of {format_latency(evidence.usual)}"
    return f"; a step takes {format_latency(evidence.pace)}"


def _is_slower(evidence: Evidence) -> bool:
    return evidence.pace is not None and evidence.usual is not None and evidence.pace > 2 * evidence.usual


def _has_steps(evidence: Evidence) -> bool:
    return evidence.run.generation.phases[Phase.STEPS] > 0


def _is_stuck(evidence: Evidence) -> bool:
    quiet = evidence.quiet or 0.0
    return quiet > max(_STUCK_SECONDS, 3 * (evidence.pace or 0.0))
