"""From what was seen in a log to a verdict: the earliest, most specific cause; what followed from it folded under."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from aboard.core.nodeset import fold
from aboard.core.words import many
from aboard.diagnoses import Finding, Severity, Shell, collective, logs, shell, software
from aboard.diagnoses.messages import Role
from aboard.verdicts.logs.order import clearly_before, in_order, near
from aboard.verdicts.logs.sighting import Reading, Sighting
from aboard.verdicts.logs.told import code_of, finding_of, followed, odd_findings
from aboard.verdicts.nccl import NcclLog, missing_ranks, named_ranks

# A run that printed so much progress after an error has survived it; what buffers held back is less.
_SURVIVED = 100
_MOST_CONSEQUENCES = 6


def judge(reading: Reading) -> list[Finding]:
    """The verdict first, then what else is odd; nothing where a log shows nothing wrong."""
    fatal = [each for each in reading.sightings if not each.mild and not _survived(each, reading)]
    chosen = choose(fatal)
    findings = []
    if chosen is not None:
        findings.append(_verdict(chosen, fatal, reading))
    else:
        findings += _without_cause(fatal, reading)
    if not findings:
        findings += list(_survivors(reading))
    others = [*odd_findings(reading), *network_findings(reading.nccl)]
    known = {finding.code for finding in findings}
    return [*findings, *(each for each in others if each.code not in known)]


def choose(fatal: list[Sighting]) -> Sighting | None:
    """The sighting that explains the others."""
    causes = in_order(_of(fatal, Role.CAUSE))
    waits = in_order(_of(fatal, Role.WAIT))
    ends = in_order(_of(fatal, Role.END))
    best = _best_cause(causes)
    if best is None or (best.message.weight == 1 and _stopped_before(best, ends)):
        told = [each for each in ends if each.code == "log-told-to-stop"]
        best = told[0] if told and best is not None else best
    if best is not None:
        earlier = [each for each in waits if clearly_before(each, best)]
        return best if best.message.late or not earlier else _strongest(earlier)
    return _strongest(waits) or _strongest(ends)


def _best_cause(causes: list[Sighting]) -> Sighting | None:
    """The earliest, unless one beside it, or one that is always told late, names the thing itself."""
    if not causes:
        return None
    first = causes[0]
    together = [each for each in causes if near(first, each) or each.message.late]
    return _strongest(together)


def _stopped_before(best: Sighting, ends: list[Sighting]) -> bool:
    """Whether the launcher was told to stop before a rank raised: what ranks raise at their end is no cause."""
    return any(each.code == "log-told-to-stop" and clearly_before(each, best) for each in ends)


def _strongest(sightings: list[Sighting]) -> Sighting | None:
    """The heaviest; of equal ones the first."""
    return max(sightings, key=lambda each: each.message.weight, default=None)


def _verdict(chosen: Sighting, fatal: list[Sighting], reading: Reading) -> Finding:
    finding = finding_of(chosen, fatal, reading)
    after = [each for each in fatal if each is not chosen and code_of(each, reading) != finding.code]
    return replace(finding, consequences=tuple(_consequences(after, finding)))


def _consequences(after: list[Sighting], verdict: Finding) -> Iterator[Finding]:
    """One line for each thing that was said besides, and one for all that lost a peer."""
    told: set[str] = {verdict.code}
    for each in in_order([one for one in after if one.message.role in (Role.CAUSE, Role.WAIT, Role.END)]):
        if each.code not in told and len(told) <= _MOST_CONSEQUENCES:
            told.add(each.code)
            yield each.diagnosis.finding(
                severity=Severity.INFO,
                nodes=(each.node,) if each.node else (),
                ranks=() if each.rank is None else (each.rank,),
                seen=each.text.visible(160),
                why=each.why(each.groups),
            )
    yield from followed(_of(after, Role.ECHO))


def _without_cause(fatal: list[Sighting], reading: Reading) -> list[Finding]:
    """Nothing in the log is a cause: it lost a peer, it never came to be set up, or nobody knows what it says."""
    for told in (incomplete(reading), peer_lost(_of(fatal, Role.ECHO)), unknown(reading)):
        if told is not None:
            return [told]
    return []


def _survivors(reading: Reading) -> Iterator[Finding]:
    """Errors after which the run went on: worth a line each."""
    told: set[str] = set()
    for each in reading.sightings:
        if _survived(each, reading) and each.message.role is Role.CAUSE and each.code not in told:
            told.add(each.code)
            finding = finding_of(each, [], reading)
            yield replace(finding, severity=Severity.INFO, seen=f"{finding.seen}; the run went on after it")


def _survived(sighting: Sighting, reading: Reading) -> bool:
    return reading.progress - sighting.progress > _SURVIVED and sighting.message.role is not Role.END


def _of(sightings: Iterable[Sighting], role: Role) -> list[Sighting]:
    return [each for each in sightings if each.message.role is role]


_SOCKET = "Socket"


def network_findings(log: NcclLog) -> Iterator[Finding]:
    """Sockets on some nodes while others have the fabric, or although the same node names its adapters."""
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
    if named:
        reason = f"{fold(fast)} took the fabric" if fast else f"{', '.join(hcas[named[0]][:4])} are there"
        yield collective.SOCKETS.finding(
            severity=Severity.WARN,
            nodes=tuple(named),
            seen=f"NCCL took sockets on {fold(named)}, although {reason}",
            why="Sockets carry a tenth of what the fabric does, and every collective waits for the slowest node.",
            fix=collective.SOCKETS.fix("log", where=shell("{names}", names=fold(named))),
        )
    versions = {each.version: each.host for each in log.ranks.values() if each.version}
    if len(versions) > 1:
        told = ", ".join(f"{version} on {host}" for version, host in sorted(versions.items()))
        yield software.NCCL.finding(
            severity=Severity.WARN,
            nodes=tuple(sorted(versions.values())),
            seen=f"NCCL is {told}",
            why="Nodes that load different versions of NCCL often can't talk to each other.",
            fix=software.NCCL.fix("paths"),
        )


def incomplete(reading: Reading) -> Finding | None:
    """NCCL's set-up began and never ended: who is in it, and who never came."""
    waiting = reading.nccl.open()
    if not waiting or reading.progress:
        return None
    there = list(reading.nccl.ranks.values())
    missing = missing_ranks(there, reading.nccl.world)
    ranks = [each.rank for each in waiting if each.rank is not None]
    seen = f"{named_ranks(ranks)} began to set up NCCL, and the log ends before that was done"
    if missing:
        seen += f"; {named_ranks(missing)} of {reading.nccl.world} never came"
    nodes = tuple(dict.fromkeys(each.host for each in waiting)) if not missing else ()
    return logs.INIT_INCOMPLETE.finding(
        nodes=nodes[:8],
        ranks=missing or tuple(sorted(ranks)),
        seen=seen,
        fix=logs.INIT_INCOMPLETE.fix(ranks=Shell(named_ranks(missing) if missing else "each rank")),
    )


def peer_lost(echoes: list[Sighting]) -> Finding | None:
    """Only echoes: who died first is in another log."""
    if not echoes:
        return None
    first = in_order(echoes)[0]
    return logs.PEER_LOST.finding(
        nodes=(first.node,) if first.node else (),
        ranks=() if first.rank is None else (first.rank,),
        seen=f'the log says "{first.text.visible(300)}", and no cause before it',
        fix=logs.PEER_LOST.fix(),
    )


def unknown(reading: Reading) -> Finding | None:
    """Something went wrong, in words that have no name here."""
    if not reading.unknown:
        return None
    seen = "; ".join(f'"{text.visible(200)}"' for text in dict.fromkeys(reading.unknown[-3:]))
    return logs.UNKNOWN.finding(
        nodes=(),
        seen=f"{many(reading.lines, 'line')}, no known cause; the last errors are {seen}",
        fix=logs.UNKNOWN.fix(),
    )
