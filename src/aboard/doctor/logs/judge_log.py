"""From sightings in a log to a verdict: the earliest, most specific cause, with its consequences under it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.input_text import agree, format_count
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Finding, Severity, Shell, format_shell
from aboard.diagnoses.catalogue import all_diagnoses
from aboard.diagnoses.output_patterns import PatternRole
from aboard.doctor.collective import diagnoses as collective
from aboard.doctor.logs import collective_messages as messages, diagnoses as undetermined
from aboard.doctor.logs.log_scanner import SURVIVED
from aboard.doctor.logs.nccl_log import NcclLogSummary, list_missing_ranks
from aboard.doctor.logs.sighting import ScannedLog, Sighting, is_clearly_before, is_near, sort_sightings
from aboard.doctor.logs.sighting_findings import (
    build_finding,
    describe_followers,
    find_code,
    format_trouble,
    list_odd_findings,
)
from aboard.doctor.logs.trouble import ERROR, WORDS, Trouble
from aboard.doctor.software import diagnoses as software

_MOST_CONSEQUENCES = 6
_MORE_TROUBLES = 2
_WITHIN_REASON = 20
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_GENERAL = ("container-not-started", "log-unknown")


def judge_log(log: ScannedLog) -> list[Finding]:
    """The verdict first, then what else is odd; nothing where a log shows nothing wrong."""
    fatal = [each for each in log.sightings if not each.mild and not _is_survived(each, log)]
    chosen = choose_cause(fatal)
    findings = []
    if chosen is not None:
        findings.append(_build_verdict(chosen, fatal, log))
    else:
        findings += _explain_without_cause(fatal, log)
    if not findings or (findings[0].code == undetermined.UNKNOWN.code and log.troubles[0].weight < ERROR):
        findings = [*find_separate_worlds(log), *_explain_repeated_warnings(log)] or findings
    if not findings:
        findings += list(_list_survived_errors(log))
    others = [*list_odd_findings(log), *find_ras_groups(log), *find_network_differences(log.nccl)]
    if log.troubles and log.troubles[0].weight < ERROR and any(each.severity is Severity.WARN for each in others):
        findings = [each for each in findings if each.code != undetermined.UNKNOWN.code]
    known = {finding.code for finding in findings}
    return [*findings, *(each for each in others if each.code not in known)]


def find_outcome(findings: Sequence[Finding], log: ScannedLog) -> str:
    """What a log comes to, in one word: see `LogExplanation`."""
    alarms = [each for each in findings if each.severity > Severity.INFO]
    if alarms:
        return "trouble" if all(each.code == undetermined.UNKNOWN.code for each in alarms) else "verdict"
    return "healthy" if log.healthy else "completed" if log.closed else "progress" if log.moving else "unknown"


def choose_cause(fatal: list[Sighting]) -> Sighting | None:
    """The sighting that explains the others."""
    causes = sort_sightings(_filter_by_role(fatal, PatternRole.CAUSE))
    waits = sort_sightings(_filter_by_role(fatal, PatternRole.WAIT))
    ends = sort_sightings(_filter_by_role(fatal, PatternRole.END))
    best = _pick_best_cause(causes)
    if best is None or (best.message.weight == 1 and _is_stopped_before(best, ends)):
        stops = [each for each in ends if each.code == "log-told-to-stop"]
        best = stops[0] if stops and best is not None else best
    if best is None:
        # Whoever cancelled the job also sent the signals.
        best = next((each for each in ends if each.code == "log-cancelled" and not _is_earlier_death(ends, each)), None)
    if best is not None:
        earlier = [each for each in waits if is_clearly_before(each, best)]
        return best if best.message.late or not earlier else _pick_strongest(earlier)
    return _pick_strongest(waits) or _pick_strongest(ends)


def _pick_best_cause(causes: list[Sighting]) -> Sighting | None:
    """The earliest, unless one near it, or one that is always logged late, is more specific."""
    if not causes:
        return None
    first = causes[0]
    together = [each for each in causes if is_near(first, each) or each.message.late]
    return _pick_strongest(together)


def _is_stopped_before(best: Sighting, ends: list[Sighting]) -> bool:
    """Whether the launcher was stopped before a rank raised: exceptions during shutdown are no cause."""
    return any(each.code == "log-told-to-stop" and is_clearly_before(each, best) for each in ends)


def _is_earlier_death(ends: list[Sighting], cancelled: Sighting) -> bool:
    """Whether a process had ended by itself: Slurm then cancels the rest of the step."""
    dead = ("run-exited", "run-killed", "host-shm")
    return any(each.code in dead and not is_clearly_before(cancelled, each) for each in ends)


def _pick_strongest(sightings: list[Sighting]) -> Sighting | None:
    """The one with the highest weight; the first among equals."""
    return max(sightings, key=lambda each: each.message.weight, default=None)


def _build_verdict(chosen: Sighting, fatal: list[Sighting], log: ScannedLog) -> Finding:
    finding = build_finding(chosen, fatal, log)
    reason = _find_reason(chosen, log)
    if reason is not None:
        finding = replace(finding, seen=f"{finding.seen}; the log also says {format_trouble(reason, log)}")
    codes = {each.code: find_code(each, log) for each in {one.code: one for one in fatal}.values()}
    after = [each for each in fatal if each is not chosen and codes[each.code] != finding.code]
    return replace(finding, consequences=tuple(_list_consequences(after, finding)))


def _find_reason(chosen: Sighting, log: ScannedLog) -> Trouble | None:
    """The worst unrecognized line, where the verdict only says that something failed."""
    weak = chosen.message.role in (PatternRole.END, PatternRole.ECHO) or chosen.message.weight == 1
    if not weak and chosen.code not in _GENERAL:
        return None
    said = [each for each in log.troubles if each.text != chosen.text]
    # The last words of the same node say more than its exit code.
    words = [
        each
        for each in said
        if each.weight == WORDS and (each.file, each.node) == (chosen.file, chosen.node)
        and chosen.line - _WITHIN_REASON <= each.line < chosen.line
    ]  # fmt: skip
    return next((each for each in [*(one for one in said if one.weight >= ERROR), *reversed(words)]), None)


def _list_consequences(after: list[Sighting], verdict: Finding) -> Iterator[Finding]:
    """One finding for each other message, and one for all ranks that lost a peer."""
    codes: set[str] = {verdict.code}
    for each in sort_sightings(
        [one for one in after if one.message.role in (PatternRole.CAUSE, PatternRole.WAIT, PatternRole.END)]
    ):
        if each.code not in codes and len(codes) <= _MOST_CONSEQUENCES:
            codes.add(each.code)
            yield each.diagnosis.finding(
                severity=Severity.INFO,
                nodes=(each.node,) if each.node else (),
                ranks=() if each.rank is None else (each.rank,),
                seen=each.text.visible(160),
                why=each.why(each.groups),
            )
    yield from describe_followers(_filter_by_role(after, PatternRole.ECHO))


def _explain_without_cause(fatal: list[Sighting], log: ScannedLog) -> list[Finding]:
    """Explains a log without a cause: a lost peer, an incomplete initialization, or unknown errors."""
    init = find_incomplete_init(log)
    echoes = _filter_by_role(fatal, PatternRole.ECHO)
    lost, trouble = find_lost_peer(echoes), describe_troubles(log)
    if init is not None:
        return [init]
    if (
        lost is not None
        and trouble is not None
        and log.troubles[0].weight >= ERROR
        and not _is_echo(log.troubles[0], echoes)
    ):
        return [replace(trouble, consequences=tuple(describe_followers(echoes)))]
    return [each for each in (lost or trouble,) if each is not None]


def _is_echo(trouble: Trouble, echoes: Iterable[Sighting]) -> bool:
    return any((each.file, each.line) == (trouble.file, trouble.line) for each in echoes)


def _explain_repeated_warnings(log: ScannedLog) -> Iterator[Finding]:
    """Warnings of a lost peer that repeat, or that are the end of a log without progress."""
    if log.closed or log.moving:
        return
    lasting = [
        each for each in log.sightings if each.mild and (each.count >= _REPEATED or each.line > log.lines - _REPEATED)
    ]
    lost = find_lost_peer(_filter_by_role(lasting, PatternRole.ECHO))
    if lost is not None:
        yield lost


def find_separate_worlds(log: ScannedLog) -> Iterator[Finding]:
    """Several processes that each say they are rank 0: runs of their own."""
    alone = [each for each in log.sightings if each.code == messages.SEPARATE_WORLDS.code]
    pids = sum(each.count for each in alone)
    if pids > 1 and not log.closed:
        nodes = tuple(dict.fromkeys(each.node for each in alone if each.node))
        yield messages.SEPARATE_WORLDS.finding(
            nodes=nodes,
            seen=f"{pids} processes on {fold_names(nodes)} each say that they are rank 0:"
            f' "{alone[0].text.visible(200)}"',
            fix=messages.SEPARATE_WORLDS.fix(),
        )


def _list_survived_errors(log: ScannedLog) -> Iterator[Finding]:
    """Errors that the run survived, as information."""
    codes: set[str] = set()
    for each in log.sightings:
        if _is_survived(each, log) and each.message.role is PatternRole.CAUSE and each.code not in codes:
            codes.add(each.code)
            finding = build_finding(each, [], log)
            yield replace(finding, severity=Severity.INFO, seen=f"{finding.seen}; the run continued afterwards")


def _is_survived(sighting: Sighting, log: ScannedLog) -> bool:
    if sighting.message.role is PatternRole.END:
        return False
    if log.progress - sighting.progress > SURVIVED:
        return True
    # Less progress is enough where times show that it came later, unless the log ends with a failure.
    later = sighting.at is not None and log.moved_at is not None and log.moved_at > sighting.at
    return later and log.moving and all(log.moves - each.moves >= _REPEATED for each in log.sightings if not each.mild)


def _filter_by_role(sightings: Iterable[Sighting], role: PatternRole) -> list[Sighting]:
    return [each for each in sightings if each.message.role is role]


_SOCKET = "Socket"
_GROUPS = 2
_APART = "hang-nccl-apart"
_REPEATED = 3
# Echoes that say more than that a peer was lost.
_TOLD_APART = (
    (re.compile(r"Got completion"), messages.FLUSHED),
    (re.compile(r"keep-alive heartbeat to the rendezvous"), messages.RENDEZVOUS_LOST),
)


def find_network_differences(log: NcclLogSummary) -> Iterator[Finding]:
    """Sockets on some nodes while others use the fabric, or although the same node has adapters."""
    took: dict[str, set[str]] = {}
    hcas: dict[str, tuple[str, ...]] = {}
    for each in log.ranks.values():
        if each.network:
            took.setdefault(each.network, set()).add(each.host)
        if each.hcas:
            hcas[each.host] = each.hcas
    slow = sorted(took.get(_SOCKET, ()))
    fast = sorted(host for network, hosts in took.items() if network != _SOCKET for host in hosts)
    with_hcas = [host for host in slow if host in hcas]
    named = [host for host in slow if host not in fast] if fast else with_hcas
    if slow and not named and (len(slow) > 1 or log.nodes > 1):
        yield _describe_sockets(log, slow)
    if named:
        present = hcas.get(named[0], ())[:4]
        reason = (
            f"{fold_names(fast)} {agree(fast, 'uses', 'use')} the fabric"
            if fast
            else f"{', '.join(present)} {agree(present, 'is', 'are')} present"
        )
        yield collective.SOCKETS.finding(
            severity=Severity.WARN,
            nodes=tuple(named),
            seen=f"NCCL uses TCP sockets on {fold_names(named)} although {reason}",
            why="TCP sockets have about a tenth of the fabric's bandwidth, and every collective waits for the slowest"
            " node.",
            fix=collective.SOCKETS.fix("log", where=format_shell("{names}", names=fold_names(named))),
        )
    versions = {each.version: each.host for each in log.ranks.values() if each.version}
    if len(versions) > 1:
        places = ", ".join(f"{version} on {host}" for version, host in sorted(versions.items()))
        yield software.NCCL.finding(
            severity=Severity.WARN,
            nodes=tuple(sorted(versions.values())),
            seen=f"NCCL versions differ: {places}",
            why="Nodes that load different versions of NCCL often can't talk to each other.",
            fix=software.NCCL.fix("paths"),
        )


def _describe_sockets(log: NcclLogSummary, slow: list[str]) -> Finding:
    """Sockets on all nodes alike: a warning only if the log has a sign that there is a fabric."""
    ranks = [each for each in log.ranks.values() if each.network == _SOCKET]
    sign = next((each.fabric for each in ranks if each.fabric), "")
    interfaces = sorted({each.interface for each in ranks if each.interface})
    over = f" over {', '.join(interfaces[:4])}" if interfaces else ""
    return collective.SOCKETS.finding(
        severity=Severity.WARN if sign else Severity.INFO,
        nodes=tuple(slow),
        seen=f"NCCL uses TCP sockets on all nodes of the log{over}" + (f" although it says: {sign}" if sign else ""),
        why="TCP sockets have about a tenth of a fabric's bandwidth."
        + ("" if sign else " Without InfiniBand, RoCE or EFA in the nodes, this is as it should be."),
        fix=collective.SOCKETS.fix("log", where=format_shell("{names}", names=fold_names(slow))),
    )


def find_incomplete_init(log: ScannedLog) -> Finding | None:
    """NCCL's initialization began and never completed: which ranks are in it, and which never appeared."""
    waiting = log.nccl.open()
    if not waiting or log.progress:
        return None
    there = list(log.nccl.ranks.values())
    missing = list_missing_ranks(there, log.nccl.world)
    ranks = [each.rank for each in waiting if each.rank is not None]
    seen = f"{name_ranks(ranks)} began NCCL initialization, but the log ends before it completed"
    if missing:
        seen += f"; {name_ranks(missing)} of {log.nccl.world} never appeared in NCCL's log"
    nodes = tuple(dict.fromkeys(each.host for each in waiting)) if not missing else ()
    return undetermined.INIT_INCOMPLETE.finding(
        nodes=nodes[:8],
        ranks=missing or tuple(sorted(ranks)),
        seen=seen,
        fix=undetermined.INIT_INCOMPLETE.fix(ranks=Shell(name_ranks(missing) if missing else "each rank")),
    )


def find_ras_groups(log: ScannedLog) -> Iterator[Finding]:
    """Ranks of a communicator at different collectives, which RAS lists as groups."""
    apart = all_diagnoses()[_APART]
    single = any(each.code == _APART for each in log.sightings)
    for comm in log.ras:
        for kind, parts in comm.launched:
            if single or len(parts) < _GROUPS:
                continue
            most = max(parts, key=lambda part: part.count)
            few = min(parts, key=lambda part: part.count)
            ranks = tuple(each.number for each in few.ranks)
            hosts = tuple(dict.fromkeys(each.process.address for each in few.ranks if each.process))
            named = f" ({name_ranks(ranks)} on {fold_names(hosts)})" if ranks else ""
            where = "behind" if few.reached < most.reached else "ahead"
            total = sum(part.count for part in parts)
            where = f"{'is' if few.count == 1 else 'are'} {where}"
            yield apart.finding(
                severity=Severity.WARN,
                nodes=hosts[:8],
                ranks=ranks,
                seen=f"communicator {comm.name}: ranks have different {kind} operation counts: {few.count} of {total}"
                f" ranks{named} {where}, at operation {few.reached}; {most.count} are at {most.reached}",
                why="One side waits for the other. Counts also differ for moments in a healthy run: if the same ranks"
                " are behind in a second report, they are the ones to look at.",
                fix=apart.fix("ras"),
            )


def find_lost_peer(echoes: list[Sighting]) -> Finding | None:
    """Only echoes: the first death is in another log."""
    if not echoes:
        return None
    ordered = sort_sightings(echoes)
    diagnosis = next(
        (known for words, known in _TOLD_APART if words.search(ordered[0].text.raw())), undetermined.PEER_LOST
    )
    # A line that names the peer says more.
    first = next((each for each in ordered if _ADDRESS.search(each.text.raw())), ordered[0])
    return diagnosis.finding(
        nodes=(first.node,) if first.node else (),
        ranks=() if first.rank is None else (first.rank,),
        seen=f'the log shows "{first.text.visible(300)}" and no earlier cause',
        fix=diagnosis.fix(),
    )


def describe_troubles(log: ScannedLog) -> Finding | None:
    """Lines that look like trouble and match no known message: the worst, and up to two more."""
    if not log.troubles:
        return None
    first, *others = log.troubles
    seen = format_trouble(first, log)
    if others:
        seen += "; also " + "; ".join(format_trouble(each, log) for each in others[:_MORE_TROUBLES])
    if len(others) > _MORE_TROUBLES:
        seen += f"; and {format_count(len(others) - _MORE_TROUBLES, 'more line')}"
    return undetermined.UNKNOWN.finding(
        severity=Severity.WARN,
        nodes=(first.node,) if first.node else (),
        ranks=() if first.rank is None else (first.rank,),
        seen=seen,
        fix=undetermined.UNKNOWN.fix(),
    )
