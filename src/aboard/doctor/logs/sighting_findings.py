"""Findings from sightings: the rank and node, the quoted message, and the fix with its blanks filled in."""

from collections.abc import Iterator

from aboard.core.text.input_text import format_count
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.output_patterns import PatternRole
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.doctor.logs.nccl_log import find_stall, format_stall, name_group
from aboard.doctor.logs.sighting import ScannedLog, Sighting, is_near, sort_sightings
from aboard.doctor.logs.trouble import Trouble

_QUOTED = 300
# Messages that don't end a run.
_SEVERITIES = {PatternRole.ODD: Severity.WARN, PatternRole.INFO: Severity.INFO}
_LINKS = ("network-", "fabric-rail", "collective-fabric", "log-store")


def build_finding(chosen: Sighting, fatal: list[Sighting], log: ScannedLog) -> Finding:
    """The verdict from a sighting, with what the rest of the log adds."""
    if chosen.finding is not None:
        return chosen.finding
    hint = _find_hint(chosen, log)
    named = hint or chosen
    node, rank = _find_source(chosen, fatal)
    ranks: tuple[int, ...] = () if rank is None else (rank,)
    seen = [_format_quote(chosen, node, rank, log)]
    if hint:
        seen.append(f'and "{hint.text.visible(_QUOTED)}"')
    nodes = _list_nodes(chosen, hint, node, log)
    if chosen.code == "log-collective-timeout":
        stand = find_stall(log.nccl.works, log.nccl.last, log.nccl.world)
        if stand.at is not None:
            group = name_group(log.nccl)
            seen = [format_stall(stand), *([f"they waited in {group}"] if group else [])]
            ranks = stand.blamed or ranks
            nodes = tuple(dict.fromkeys(log.by_rank[each] for each in ranks if each in log.by_rank)) or nodes
    values: dict[str, str | Untrusted] = {"node": nodes[0] if nodes else ""}
    values |= {**chosen.groups, **(hint.groups if hint else {})}
    if node and "node" not in chosen.groups:
        values["node"] = node
    if ranks:
        values["rank"] = str(ranks[0])
    values["peer"] = _find_peer(chosen, hint, log)
    return named.diagnosis.finding(
        severity=_SEVERITIES.get(chosen.message.role, Severity.BLOCK),
        nodes=nodes,
        ranks=ranks,
        seen="; ".join(seen),
        why=named.why(values),
        fix=named.fix(values),
    )


def find_code(sighting: Sighting, log: ScannedLog) -> str:
    return (_find_hint(sighting, log) or sighting).code


def describe_followers(echoes: list[Sighting]) -> Iterator[Finding]:
    """One finding for all ranks that lost a peer."""
    if echoes:
        ranks = sorted({each.rank for each in echoes if each.rank is not None})
        first = sort_sightings(echoes)[0]
        who = name_ranks(ranks) if ranks else format_count(sum(each.count for each in echoes), "line")
        yield death.FOLLOWED.finding(
            nodes=tuple(dict.fromkeys(each.node for each in echoes if each.node)),
            ranks=tuple(ranks),
            seen=f'{who}: "{first.text.visible(120)}"',
        )


def list_odd_findings(log: ScannedLog) -> Iterator[Finding]:
    """Messages that don't stop a run: one finding each, with all nodes that logged it."""
    groups: dict[int, list[Sighting]] = {}
    for each in log.sightings:
        # A listing of the queue in the log of a run that goes on shows other jobs.
        if each.message.role in _SEVERITIES and not (log.moves and each.code.startswith("slurm-")):
            groups.setdefault(id(each.message), []).append(each)
    for group in groups.values():
        first = sort_sightings(group)[0]
        if first.finding is not None:
            yield first.finding
            continue
        nodes = tuple(dict.fromkeys(each.node for each in group if each.node))
        values: dict[str, str | Untrusted] = {"node": nodes[0] if nodes else "", **first.groups}
        yield first.diagnosis.finding(
            severity=_SEVERITIES[first.message.role],
            nodes=nodes,
            ranks=tuple(sorted({each.rank for each in group if each.rank is not None}))[:64],
            seen=_format_quote(first, first.node, first.rank, log),
            why=first.why(values),
            fix=first.fix(values),
        )


def format_trouble(trouble: Trouble, log: ScannedLog) -> str:
    """Who printed it, the quoted line and its place."""
    who = f"rank {trouble.rank}" if trouble.rank is not None else ""
    who = f"{who} on {trouble.node}" if who and trouble.node else who or trouble.node
    quoted = f'"{escape_text(" ".join(trouble.text.raw().split()), _QUOTED)}" ({format_place(trouble, log)})'
    often = f", {trouble.count} times" if trouble.count > 1 else ""
    return f"{who}: {quoted}{often}" if who else f"{quoted}{often}"


def format_place(sighting: Sighting | Trouble, log: ScannedLog) -> str:
    """The file name and line of a sighting."""
    name = escape_text(log.files[sighting.file - 1].rpartition("/")[2])
    return f"line {sighting.line}" if name == "-" else f"{name}:{sighting.line}"


def _find_hint(chosen: Sighting, log: ScannedLog) -> Sighting | None:
    """The message that refines a cause; the last one, since the first attempts are often too early."""
    hints = [each for each in log.sightings if chosen.code in each.message.refines]
    unresolved = [each for each in hints if each.code == "network-unresolved"]
    return next(reversed(unresolved or hints), None)


def _find_source(chosen: Sighting, fatal: list[Sighting]) -> tuple[str, int | None]:
    """The node and rank of a message, or those that related messages name: a kernel line has no rank."""
    node, rank = chosen.node, chosen.rank
    same = [each for each in fatal if each.code == chosen.code and each is not chosen]
    ends = [each for each in fatal if each.message.role is PatternRole.END and not each.code.startswith("log-")]
    wanted = [*same, *sorted(sort_sightings(ends), key=lambda each: -each.message.weight)]
    for each in wanted:
        fits = (not node or not each.node or node == each.node) and (rank is None or each.rank in (None, rank))
        if fits and chosen.message.role is not PatternRole.WAIT:
            node, rank = node or each.node, each.rank if rank is None else rank
    if rank is None and chosen.message.role is PatternRole.CAUSE:
        # NCCL's own line has no rank; torch repeats the error right after it with the rank.
        beside = {
            each.rank for each in fatal if each.message.weight == 1 and each.rank is not None and is_near(chosen, each)
        }
        rank = beside.pop() if len(beside) == 1 else None
    return node, rank


def _list_nodes(chosen: Sighting, hint: Sighting | None, node: str, log: ScannedLog) -> tuple[str, ...]:
    """The nodes of a sighting; for a link both ends, the far one first, where the firewall or the dead service is."""
    code = (hint or chosen).code
    peer = _find_peer(chosen, hint, log)
    if code == "network-unresolved":
        return (node,) if node else ()
    if peer and code.startswith(_LINKS):
        return tuple(dict.fromkeys(name for name in (peer, node) if name))
    return (node,) if node else ()


def _find_peer(chosen: Sighting, hint: Sighting | None, log: ScannedLog) -> str:
    """The far end of a link: its node, if the log names the node of the address."""
    found = {**chosen.groups, **(hint.groups if hint else {})}.get("peer", NO_TEXT).visible()
    return log.by_address.get(found, found)


def _format_quote(sighting: Sighting, node: str, rank: int | None, log: ScannedLog) -> str:
    who = f"rank {rank}" if rank is not None else ""
    if not who and sighting.local is not None:
        who = f"local rank {sighting.local}"
    who = f"{who} on {node}" if who and node else who or node or "the log"
    at = f" at {sighting.frame.visible()}" if sighting.frame else ""
    quoted = f'"{escape_text(" ".join(sighting.text.raw().split()), _QUOTED)}"'
    return f"{who}{at}: {quoted} ({format_place(sighting, log)})"
