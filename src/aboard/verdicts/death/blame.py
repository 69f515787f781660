"""Deaths that say why a rank lost its peers: whom they name is the cause, not the ranks that died."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from aboard.core.evidence import Evidence, View, nodes_of, ranks_of
from aboard.core.head import is_loopback
from aboard.core.nodeset import fold
from aboard.core.rankset import fold_ranks
from aboard.core.run import Child
from aboard.diagnoses import Finding, hang, join_fixes, network, rendezvous
from aboard.verdicts.commands import let_in, off_loopback, recheck
from aboard.verdicts.death.earliest import dead_children, rank_of, tail_of

_ADDRESS = r"\[([0-9a-fA-F.:]+)\]"
_MESH = re.compile(rf"connectFullMesh failed.*?remote={_ADDRESS}", re.DOTALL)
_REFUSED = re.compile(r"connection refused", re.IGNORECASE)
_BEHIND = re.compile(r"Ranks? ([\d, ]+) (?:failed to pass|timed out in) monitoredBarrier")
_LOST = re.compile(rf"Connection closed by peer {_ADDRESS}|{_ADDRESS}:\d+: (?:Connection reset by peer|Broken pipe)")
_OTHER_SIZE = re.compile(r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes")
# The connections of a rank that leaves close a moment before its process is gone.
_LEAVING_SECONDS = 3.0
# A process that dies ends its connections, too; two clocks may differ by this.
_CLOCK_SECONDS = 0.05


def left_early(evidence: Evidence, cause: Child) -> Iterator[Finding]:
    """A rank that ended well before another one lost its connections: those were to it."""
    done = [child for child in evidence.run.generation.children.values() if child.state == "exited" and child.code == 0]
    near = [child for child in done if child.at <= cause.died_at + _LEAVING_SECONDS]
    if near:
        left = min(near, key=lambda child: child.at)
        yield hang.UNEVEN.finding(
            nodes=(left.node,),
            ranks=(rank_of(left),),
            seen=f"rank {left.name} on {left.node} finished, and {max(0.0, cause.died_at - left.at):.1f} s later the"
            " others had lost their connections to it",
            why="Ranks had different numbers of batches, or one left early: the others then wait for it in a"
            " collective.",
            fix=hang.UNEVEN.fix(run=evidence.plan.run, rank=left.name),
        )


def unreached(evidence: Evidence, _cause: Child) -> Iterator[Finding]:
    """The node that most of them could not reach; if only one node complains, and of several, that one."""
    tried = [(child, found[1]) for child, found in _raised(evidence, _MESH)]
    looped = [child for child, address in tried if is_loopback(address)]
    if looped and len(evidence.plan.parts) > 1:
        yield _loopback(evidence, looped)
        return
    tries = [(child, address, evidence.owners.get(address, "")) for child, address in tried]
    tries = [(child, address, peer) for child, address, peer in tries if peer not in ("", child.node)]
    if not tries:
        return
    peers, sources = Counter(peer for _child, _address, peer in tries), {child.node for child, *_whom in tries}
    blamed = next(iter(sources)) if len(peers) > 1 and len(sources) == 1 else peers.most_common(1)[0][0]
    first, address, peer = min(tries, key=lambda each: each[0].died_at)
    refused = any(child is first for child, _found in _raised(evidence, _REFUSED))
    verb = "is refused by" if refused else "gets no answer from"
    diagnosis = rendezvous.PEER_REFUSED if refused else rendezvous.PEER_DROPPED
    check = recheck(evidence, (blamed, first.node, peer), "network", "before the next launch")
    yield diagnosis.finding(
        nodes=(blamed,),
        ranks=tuple(_ranks(evidence, blamed)),
        seen=f"rank {_names(child for child, *_whom in tries)} {verb} {address} on {peer}, where rank"
        f" {fold_ranks(_ranks(evidence, peer))} listens for its peers",
        why="Ranks connect to each other at ports that the kernel chooses: a firewall closes these, not the store's.",
        fix=join_fixes(
            diagnosis.fix("open", rules=let_in(evidence, (blamed,), address)), diagnosis.fix("check", check=check)
        ),
    )


def missed(evidence: Evidence, _cause: Child) -> Iterator[Finding]:
    """A barrier with a time-out knows who did not come to it."""
    ranks = {int(rank) for _child, found in _raised(evidence, _BEHIND) for rank in re.findall(r"\d+", found[1])}
    views = [view for view in evidence.views if view.rank in ranks]
    if views:
        names, nodes = fold_ranks(ranks_of(views)), nodes_of(views)
        where = f" at {views[0].site}" if views[0].site is not None else ""
        yield hang.ABSENT.finding(
            nodes=nodes,
            ranks=ranks_of(views),
            seen=f"rank {names} on {fold(nodes)} did not come to the barrier in time{where}",
            why="All others had reached it and gave up waiting; whatever they say of closed connections is no cause.",
            fix=hang.ABSENT.fix("barrier", run=evidence.plan.run, ranks=names),
        )


def parted(evidence: Evidence, _cause: Child) -> Iterator[Finding]:
    """Connections that were ended though nobody had died: something between the nodes did it.

    It is at the node at which all that were lost first have an end; if there is none, at both ends of the first.
    """
    named = [(child, found[1] or found[2]) for child, found in _raised(evidence, _LOST)]
    lost = [(child, address, evidence.owners.get(address, child.node)) for child, address in named]
    losses = [loss for loss in lost if loss[2] != loss[0].node and not _died_before(evidence, *loss)]
    if not losses:
        return
    first, address, peer = min(losses, key=lambda loss: loss[0].died_at)
    pairs = {frozenset((child.node, other)) for child, _address, other in losses}
    ends = Counter(name for pair in pairs for name in pair)
    common = [name for name, count in ends.items() if count == len(pairs) > 1]
    nodes = tuple(common) if len(common) == 1 else (peer, first.node)
    check = recheck(evidence, (peer, first.node), "network", "before the next launch")
    yield network.RESET.finding(
        nodes=nodes,
        seen=f"connections of rank {_names(loss[0] for loss in losses)} to"
        f" {fold(dict.fromkeys(loss[2] for loss in losses))} were ended, first that to {address}, and no rank there had"
        " died",
        why="Something between the nodes ends connections: a firewall that was changed, a connection table that was"
        " flushed or is full, a filter.",
        fix=join_fixes(
            network.RESET.fix("let-in", rules=let_in(evidence, nodes, address)),
            network.RESET.fix("check", check=check),
        ),
    )


def met_apart(evidence: Evidence, cause: Child) -> Iterator[Finding]:
    """Two ranks met with different sizes: the one that differs from most, if records tell, else the one that died."""
    text = f"{cause.raised.message if cause.raised is not None else ''} {' '.join(tail_of(evidence, cause))}"
    if _OTHER_SIZE.search(text) is None:
        return
    odd = [evidence.view(rank) for standing in evidence.standings for rank in (*standing.odd, *standing.behind)]
    odd = [view for view in odd if view.alive]
    ranks = ranks_of(odd) if odd else (int(cause.name),) if cause.name.isdigit() else ()
    nodes = nodes_of(odd) if odd else (cause.node,)
    differs = f"; rank {fold_ranks(ranks)} on {fold(nodes)} is at another call than most{_at(odd[0])}" if odd else ""
    yield hang.MISMATCH.finding(
        nodes=nodes,
        ranks=ranks,
        seen=f"rank {cause.name} on {cause.node} got more from a peer than it had asked for, and was ended by Gloo"
        f"{differs}",
        why="Two ranks met in different collectives, or with tensors of different sizes: their code, their"
        " configuration or their data made them go apart.",
        fix=hang.MISMATCH.fix("died", run=evidence.plan.run, rank=cause.name),
    )


def _loopback(evidence: Evidence, tried: list[Child]) -> Finding:
    """Who was told to connect to itself does not know by whom: nodes whose own name is the loopback, or else all."""
    named = tuple(name for name, node in evidence.witness.items() if node.names_itself_loopback)
    blamed = named or tuple(part.node.name for part in evidence.plan.parts)
    return rendezvous.LOOPBACK.finding(
        nodes=blamed,
        seen=f"rank {_names(tried)} was told by a peer to connect to 127.0.0.1, where only its own node is",
        why="The interface that was set is the loopback, or a node's own name stands for it in /etc/hosts.",
        fix=off_loopback(evidence, blamed),
    )


def _died_before(evidence: Evidence, child: Child, _address: str, peer: str) -> bool:
    others = [each for each in dead_children(evidence) if each.node == peer]
    return any(each.died_at <= child.died_at + _CLOCK_SECONDS for each in others)


def _raised(evidence: Evidence, pattern: re.Pattern[str]) -> list[tuple[Child, re.Match[str]]]:
    """The ranks that died of an exception that fits the pattern."""
    texts = [(child, child.raised) for child in dead_children(evidence)]
    found = [(child, pattern.search(f"{text.type}: {text.message}")) for child, text in texts if text is not None]
    return [(child, match) for child, match in found if match is not None]


def _ranks(evidence: Evidence, name: str) -> list[int]:
    return [start.rank or 0 for node, start in evidence.plan.starts() if node == name]


def _names(children: Iterable[Child]) -> str:
    return fold_ranks(sorted(int(child.name) for child in children if child.name.isdigit()))


def _at(view: View) -> str:
    return f" ({view.site})" if view.site is not None else ""
