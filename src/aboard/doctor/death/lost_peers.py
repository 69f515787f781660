"""Deaths that name a lost peer: the peer is the cause, not the ranks that died."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from aboard.core.cluster.head_machine import is_loopback
from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence, RankView, list_nodes, list_ranks
from aboard.core.run.run_state import RankProcess
from aboard.core.text.input_text import agree
from aboard.core.text.rank_sets import fold_ranks, name_ranks
from aboard.diagnoses import Finding, RunFailure, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, escape_text
from aboard.doctor.death.first_death import get_tail
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.network import diagnoses as network
from aboard.doctor.shared.fix_commands import build_check_command, build_firewall_rules
from aboard.doctor.start import diagnoses as rendezvous
from aboard.doctor.start.rendezvous import build_loopback_fix
from aboard.lazy_dataclass import dataclass

# With so few ranks there is no majority that shows which of them is wrong.
PAIR = 2
# The connections of an exiting rank close a moment before its process ends.
_LEAVING_SECONDS = 3.0
# A dying process closes its connections, too; two clocks may differ by this.
_CLOCK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class _Complaint:
    """A dead rank, its exception, and the node of the peer that it names; its own if it names none."""

    child: RankProcess
    diagnosis: RunFailure
    match: re.Match[str]
    peer: str


def find_early_exit(evidence: Evidence, cause: RankProcess) -> Iterator[Finding[RunFailure]]:
    """A rank that exited successfully before another lost its connections to it."""
    done = [child for child in evidence.run.generation.children.values() if child.state == "exited" and child.code == 0]
    near = [child for child in done if child.at <= cause.died_at + _LEAVING_SECONDS]
    if near:
        finished = min(near, key=lambda child: child.at)
        yield hang.UNEVEN.finding(
            nodes=(finished.node,),
            ranks=(finished.rank,),
            seen=f"rank {finished.name} on {finished.node} finished;"
            f" {max(0.0, cause.died_at - finished.at):.1f} s later the others lost their connections to it",
            fix=hang.UNEVEN.fix(run=evidence.plan.run, rank=finished.name),
        )


def find_unreachable_peer(evidence: Evidence, _cause: RankProcess) -> Iterator[Finding[RunFailure]]:
    """Blames the node that most could not reach, or the only node that could not reach several."""
    complaints = _find_complaints(evidence, network.EPHEMERAL_REFUSED, network.EPHEMERAL_DROPPED)
    on_loopback = [each.child for each in complaints if is_loopback(each.match["peer"])]
    if on_loopback and len(evidence.plan.parts) > 1:
        yield _build_loopback_finding(evidence, on_loopback)
        return
    tries = [each for each in complaints if each.peer != each.child.node]
    if not tries:
        return
    peers, sources = Counter(each.peer for each in tries), {each.child.node for each in tries}
    blamed = next(iter(sources)) if len(peers) > 1 and len(sources) == 1 else peers.most_common(1)[0][0]
    first = min(tries, key=lambda each: each.child.died_at)
    address, peer, diagnosis = first.match["peer"], first.peer, first.diagnosis
    tried, listening = _list_numbers(each.child for each in tries), _list_ranks(evidence, peer)
    refused = agree(tried, "was refused by", "were refused by")
    verb = refused if diagnosis is network.EPHEMERAL_REFUSED else "got no reply from"
    check = build_check_command(evidence, (blamed, first.child.node, peer), "network", "before the next launch")
    yield diagnosis.finding(
        nodes=(blamed,),
        ranks=tuple(_list_ranks(evidence, blamed)),
        seen=f"{name_ranks(tried)} {verb} {address} on {peer}, where {name_ranks(listening)}"
        f" {agree(listening, 'was', 'were')} listening for peers",
        why="Ranks connect to each other on ephemeral ports. A firewall blocks these ports, although the store's port"
        " is open.",
        fix=join_fixes(
            diagnosis.fix("let-in", rules=build_firewall_rules(evidence, (blamed,), address)),
            diagnosis.fix("check", check=check),
        ),
    )


def find_missed_barrier(evidence: Evidence, _cause: RankProcess) -> Iterator[Finding[RunFailure]]:
    """A barrier with a timeout names the ranks that did not reach it."""
    found = [each.match["ranks"] for each in _find_complaints(evidence, hang.ABSENT)]
    ranks = {int(rank) for ranks in found for rank in re.findall(r"\d+", ranks)}
    views = [view for view in evidence.views if view.rank in ranks]
    if views:
        names, nodes = fold_ranks(list_ranks(views)), list_nodes(views)
        where = f" at {views[0].site}" if views[0].site is not None else ""
        yield hang.ABSENT.finding(
            nodes=nodes,
            ranks=list_ranks(views),
            seen=f"{name_ranks(list_ranks(views))} on {fold_names(nodes)} did not reach the barrier in time{where}",
            why="All other ranks reached the barrier and gave up waiting; their errors about closed connections are a"
            " consequence.",
            fix=hang.ABSENT.fix("barrier", run=evidence.plan.run, ranks=names),
        )


def find_connection_reset(evidence: Evidence, _cause: RankProcess) -> Iterator[Finding[RunFailure]]:
    """Connections that were reset although no rank died: something between the nodes did it.

    Blames the node that all lost connections share; if there is none, both ends of the first.
    """
    found = [each for each in _find_complaints(evidence, network.RESET) if each.peer != each.child.node]
    losses = [loss for loss in found if not _has_died_before(evidence, loss)]
    if not losses:
        return
    first = min(losses, key=lambda each: each.child.died_at)
    address, peer = first.match["peer"], first.peer
    peers = dict.fromkeys(loss.peer for loss in losses)
    pairs = {frozenset((loss.child.node, loss.peer)) for loss in losses}
    ends = Counter(name for pair in pairs for name in pair)
    common = [name for name, count in ends.items() if count == len(pairs) > 1]
    nodes = tuple(common) if len(common) == 1 else (peer, first.child.node)
    check = build_check_command(evidence, (peer, first.child.node), "network", "before the next launch")
    yield network.RESET.finding(
        nodes=nodes,
        seen=f"connections from {name_ranks(_list_numbers(loss.child for loss in losses))} to {fold_names(peers)} were"
        f" reset (the first one was to {address}), but no rank there had died",
        fix=join_fixes(
            network.RESET.fix("let-in", rules=build_firewall_rules(evidence, nodes, address)),
            network.RESET.fix("check", check=check),
        ),
    )


def find_collective_mismatch(evidence: Evidence, cause: RankProcess) -> Iterator[Finding[RunFailure]]:
    """Two ranks issued different sizes: blames the one that differs from most if records show it, or the dead one."""
    texts = [*([cause.raised.message] if cause.raised is not None else []), *get_tail(evidence, cause)]
    if not any(map(hang.MISMATCH.match_death, texts)):
        return
    if len(evidence.views) == PAIR:
        yield _build_pair_mismatch(evidence, cause)
        return
    odd = [evidence.view(rank) for progress in evidence.group_progress for rank in (*progress.odd, *progress.behind)]
    odd = [view for view in odd if view.alive]
    ranks = list_ranks(odd) if odd else (int(cause.name),) if cause.name.isdigit() else ()
    nodes = list_nodes(odd) if odd else (cause.node,)
    differs = (
        f"; {name_ranks(ranks)} on {fold_names(nodes)} {agree(ranks, 'is', 'are')} in a different call than most"
        f" ranks{_format_site(odd[0])}"
        if odd
        else ""
    )
    yield hang.MISMATCH.finding(
        nodes=nodes,
        ranks=ranks,
        seen=f"rank {cause.name} on {cause.node} received more data from a peer than it expected; Gloo terminated it"
        f"{_format_site(evidence.view(cause.rank))}{differs}",
        fix=hang.MISMATCH.fix("died", run=evidence.plan.run, rank=cause.name),
    )


def _build_pair_mismatch(evidence: Evidence, cause: RankProcess) -> Finding[RunFailure]:
    """Two ranks in different collectives: whoever got the unexpected data, either may have left one out."""
    places = [f"rank {view.rank} on {view.node} was{_format_place(view)}" for view in evidence.views]
    return hang.MISMATCH.finding(
        nodes=list_nodes(evidence.views),
        ranks=list_ranks(evidence.views),
        seen=f"rank {cause.name} on {cause.node} received more data from the other rank than it expected, and Gloo"
        f" terminated it; {'; '.join(places)}",
        why="One of the two ranks has left out a collective, or has issued another one than its peer. With two ranks,"
        " either may be wrong: compare both places.",
        fix=hang.MISMATCH.fix("died", run=evidence.plan.run, rank=cause.name),
    )


def _format_place(view: RankView) -> str:
    if view.site is not None:
        call = f", in {view.frames[0].name.visible()}" if view.frames[0].library else ""
        return f" at {view.site}{call}"
    why = view.seen.why.get("stack", "") if view.seen is not None else ""
    return f" at an unknown place{f' ({escape_text(why, 200)})' if why else ''}"


def _build_loopback_finding(evidence: Evidence, tried: list[RankProcess]) -> Finding[RunFailure]:
    """The peer that advertised loopback is unknown: blames nodes whose hostname is loopback, else all."""
    named = tuple(name for name, node in evidence.snapshots.items() if node.names_itself_loopback)
    blamed = named or tuple(part.node.name for part in evidence.plan.parts)
    ranks = _list_numbers(tried)
    return rendezvous.LOOPBACK.finding(
        nodes=blamed,
        seen=f"{name_ranks(ranks)} got 127.0.0.1 as the address of a peer, but that is"
        f" {agree(ranks, 'its', 'their')} own node",
        fix=build_loopback_fix(evidence, blamed),
    )


def _has_died_before(evidence: Evidence, loss: _Complaint) -> bool:
    others = [each for each in evidence.run.generation.dead if each.node == loss.peer]
    return any(each.died_at <= loss.child.died_at + _CLOCK_SECONDS for each in others)


def _find_complaints(evidence: Evidence, *diagnoses: RunFailure) -> list[_Complaint]:
    """The ranks that died of an exception that matches one of these diagnoses, the first that fits."""
    found = []
    for child in evidence.run.generation.dead:
        text = child.raised.text if child.raised is not None else NO_TEXT
        for diagnosis in diagnoses:
            if known := diagnosis.match_death(text):
                _message, match = known
                peer = evidence.owners.get(match.groupdict().get("peer", ""), child.node)
                found.append(_Complaint(child=child, diagnosis=diagnosis, match=match, peer=peer))
                break
    return found


def _list_ranks(evidence: Evidence, name: str) -> list[int]:
    return [start.rank or 0 for node, start in evidence.plan.starts() if node == name]


def _list_numbers(children: Iterable[RankProcess]) -> list[int]:
    return sorted({int(child.name) for child in children if child.name.isdigit()})


def _format_site(view: RankView) -> str:
    return f" ({view.site})" if view.site is not None else ""
