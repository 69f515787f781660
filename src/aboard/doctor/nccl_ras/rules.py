"""NCCL's own view of its ranks, where flight records and stacks show nothing: missing and lagging ranks."""

from collections.abc import Iterable, Iterator

from aboard.core.evidence.nccl_ras import RasComm, RasPart, RasProcess, RasRank, RasStatus
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.text.input_text import agree, format_count
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Confidence, Diagnosis, Finding, Fix, RunFailure, Severity, join_fixes
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.hang.collective_hang import list_hang_findings
from aboard.doctor.hang.rank_activity import describe_activity
from aboard.doctor.nccl_ras import diagnoses as nccl_ras
from aboard.doctor.shared.fix_commands import build_check_command
from aboard.lazy_dataclass import dataclass

# Counts differ briefly in every healthy run, and a busy node replies late.
_QUIET_SECONDS = 5.0
_QUIET_STEPS = 3.0


def diagnose_by_ras(evidence: Evidence) -> Iterator[RuleResult]:
    """Uses the first reply, since each covers all ranks; reports nodes without one."""
    answers = {name: node.ras for name, node in evidence.snapshots.items() if node.ras is not None}
    for name, answer in answers.items():
        if isinstance(answer, str):
            yield RuledOut(what="NCCL's RAS report", why=f"on {name}, {escape_text(answer, 200)}")
    first = next(((name, answer) for name, answer in answers.items() if isinstance(answer, RasStatus)), None)
    if first is None:
        return
    name, status = first
    causes = [
        *_find_missing_processes(evidence, status),
        *_find_failed_ranks(evidence, status),
        *_find_lagging_ranks(evidence, status),
    ]
    if not causes:
        count = f"all {status.processes} processes" if status.processes is not None else "all processes"
        why = f"NCCL's RAS ({escape_text(status.version)}, queried on {name}) reached {count}"
        yield RuledOut(what="a rank that NCCL can't reach", why=f"{why}; {_describe_oddity(status)}")
    elif (evidence.quiet or 0.0) < max(_QUIET_SECONDS, _QUIET_STEPS * (evidence.pace or evidence.usual or 0.0)):
        why = f"NCCL's RAS reports: {causes[0].seen}; that is transient while a run makes progress"
        yield RuledOut(what="a rank that NCCL can't reach", why=why)
    elif list_hang_findings(evidence):
        yield RuledOut(what="another cause from NCCL's RAS", why=f"it reports: {causes[0].seen}")
    else:
        yield from (finding.as_cause(Confidence.LIKELY) for finding in causes)


RULES = (diagnose_by_ras,)


@dataclass(frozen=True, kw_only=True)
class _LocatedRanks:
    """Ranks of the run that RAS names, their nodes, and the text for them."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    description: str
    each: tuple[str, ...]


def _find_missing_processes(evidence: Evidence, status: RasStatus) -> Iterator[Finding[RunFailure]]:
    comms = [(comm, rank) for comm in status.odd for rank in comm.missing_ranks]
    processes = [(None, RasRank(number=-1, process=each)) for each in (*status.silent, *status.dead)]
    who = _locate_ranks(evidence, [*processes, *comms])
    count = max(status.silent_count + status.dead_count, max((comm.missing for comm in status.odd), default=0))
    if count:
        others = f"{count} process{'es' * (count != 1)}"
        for_long = (
            f", and considers {'it' if (len(who.each) or count) == 1 else 'them'} dead" if status.dead_count else ""
        )
        yield nccl_ras.MISSING.finding(
            nodes=who.nodes,
            ranks=who.ranks,
            seen=f"NCCL's RAS can't reach {who.description or others}{for_long}",
            fix=_build_look_fix(evidence, nccl_ras.MISSING, who),
        )


def _find_failed_ranks(evidence: Evidence, status: RasStatus) -> Iterator[Finding[RunFailure]]:
    found = [(comm, part) for comm in status.odd for part in comm.failed]
    # All other ranks report a failed peer.
    own = [(comm, part) for comm, part in found if "Remote" not in part.what] or found
    if own:
        who = _locate_ranks(evidence, [(comm, rank) for comm, part in own for rank in part.ranks])
        kinds = ", ".join(dict.fromkeys(part.what for _comm, part in own))
        yield nccl_ras.ERROR.finding(
            nodes=who.nodes,
            ranks=who.ranks,
            seen=f"NCCL's RAS: {who.description or format_count(own[0][1].count, 'rank')} reported:"
            f" {escape_text(kinds, 120)}",
            fix=join_fixes(_build_look_fix(evidence, nccl_ras.ERROR, who), nccl_ras.ERROR.fix("debug")),
        )


def _find_lagging_ranks(evidence: Evidence, status: RasStatus) -> Iterator[Finding[RunFailure]]:
    for comm in status.odd:
        for what, parts in (*comm.launched, ("", comm.states)):
            odd = _pick_odd_parts(parts)
            if not odd:
                continue
            who = _locate_ranks(evidence, [(comm, rank) for part in odd for rank in part.ranks])
            usual = next(part for part in parts if part not in odd)
            difference = (
                f"{agree(who.each, 'has', 'have')} launched {what} up to {odd[0].what}; the others up to {usual.what}"
            )
            if not what:
                difference = f"{agree(who.each, 'is', 'are')} in state {odd[0].what}; the others are in {usual.what}"
            # Computing or writing may be legitimate.
            activities = (
                describe_activity(evidence.view(rank), evidence.usual, run=evidence.plan.run) for rank in who.ranks
            )
            patience = max((each.patience for each in activities), default=0.0)
            yield nccl_ras.APART.finding(
                severity=None if (evidence.quiet or 0.0) >= patience else Severity.INFO,
                nodes=who.nodes,
                ranks=who.ranks,
                seen=f"NCCL's RAS: {who.description} {difference}{_format_communicator(comm)}",
                fix=_build_look_fix(evidence, nccl_ras.APART, who),
            )
            return


def _pick_odd_parts(parts: tuple[RasPart, ...]) -> list[RasPart]:
    """The minority that RAS names: ranks that are behind before ranks that are ahead."""
    if len(parts) < 2:  # noqa: PLR2004 - none differs from itself
        return []
    most = max(part.reached for part in parts)
    named = [part for part in parts if part.ranks]
    behind = sorted((part for part in named if part.reached < most), key=lambda part: part.reached)
    odd = behind or [part for part in named if part is not max(parts, key=lambda each: each.count)]
    return odd if len(odd) < len(parts) else odd[:1]


def _locate_ranks(evidence: Evidence, named: Iterable[tuple[RasComm | None, RasRank]]) -> _LocatedRanks:
    ranks: dict[int, str] = {}
    others: dict[str, str] = {}
    for comm, each in named:
        rank = _find_rank(evidence, comm, each)
        if rank is not None:
            ranks[rank] = evidence.view(rank).node
        elif each.process is not None:
            address = each.process.address
            others[f"process {each.process.pid} at {escape_text(address)}"] = evidence.owners.get(address, "")
    nodes = tuple(dict.fromkeys(node for node in (*ranks.values(), *others.values()) if node))
    places = "/".join(dict.fromkeys(ranks.values()))
    words = [f"{name_ranks(ranks)} on {places}"] if ranks else []
    return _LocatedRanks(
        ranks=tuple(sorted(ranks)),
        nodes=nodes,
        description=", ".join([*words, *others]),
        each=(*map(str, ranks), *others),
    )


def _find_rank(evidence: Evidence, comm: RasComm | None, each: RasRank) -> int | None:
    """By its process; in a container its pid differs, so only a communicator of all ranks identifies it."""
    if each.process is not None:
        found = next((view.rank for view in evidence.views if _is_process_of(evidence, view.rank, each.process)), None)
        if found is not None:
            return found
    world = len(evidence.views)
    return each.number if comm is not None and comm.size == world and each.number < world else None


def _is_process_of(evidence: Evidence, rank: int, process: RasProcess) -> bool:
    view = evidence.view(rank)
    if view.seen is None or evidence.owners.get(process.address) != view.node:
        return False
    members = (view.seen.process, *view.seen.workers) if view.seen.process is not None else view.seen.workers
    return any(member.pid == process.pid for member in members)


def _build_look_fix(evidence: Evidence, diagnosis: Diagnosis, who: _LocatedRanks) -> Fix:
    if who.ranks:
        return diagnosis.fix("logs", run=evidence.plan.run, rank=who.ranks[0])
    return diagnosis.fix("check", check=build_check_command(evidence, who.nodes))


def _format_communicator(comm: RasComm) -> str:
    return (
        f" (communicator {comm.name} with {format_count(comm.size, 'rank')})"
        if comm.size is not None
        else f" ({comm.name})"
    )


def _describe_oddity(status: RasStatus) -> str:
    """The state of communicators that are out of sync without a minority that RAS names."""
    if not status.odd:
        return f"its {format_count(status.comms, 'communicator')} {'is' if status.comms == 1 else 'are'} in sync"
    comm = status.odd[0]
    launched = "; ".join(f"{part.count} at {part.what}" for _what, parts in comm.launched for part in parts)
    return f"communicator {comm.name} is out of sync{f': {launched}' if launched else ''}"
