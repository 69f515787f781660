"""Ranks whose connections were ended though nobody had died: something between the nodes did it."""

import re
from collections import Counter

from aboard.core.evidence import Evidence
from aboard.core.nodeset import fold
from aboard.core.rankset import fold_ranks
from aboard.core.run import Child
from aboard.diagnoses import Finding, join_fixes, network
from aboard.verdicts.opening import let_in
from aboard.verdicts.recheck import recheck

_ADDRESS = r"\[([0-9a-fA-F.:]+)\]"
_LOST = re.compile(rf"Connection closed by peer {_ADDRESS}|{_ADDRESS}:\d+: (?:Connection reset by peer|Broken pipe)")
# A process that dies ends its connections, too; two clocks may differ by this.
_CLOCK_SECONDS = 0.05
_Loss = tuple[Child, str, str]


def parted(evidence: Evidence) -> Finding | None:
    """The node at which all connections that were lost first have an end; if there is none, both ends of the first."""
    losses = [loss for loss in _losses(evidence) if not _died_before(evidence, loss)]
    if not losses:
        return None
    first, address, peer = min(losses, key=lambda loss: loss[0].died_at)
    pairs = {frozenset((child.node, other)) for child, _address, other in losses}
    ends = Counter(name for pair in pairs for name in pair)
    common = [name for name, count in ends.items() if count == len(pairs) > 1]
    nodes = tuple(common) if len(common) == 1 else (peer, first.node)
    names = fold_ranks(sorted(int(child.name) for child, *_whom in losses if child.name.isdigit()))
    check = recheck(evidence, (peer, first.node), "network", "before the next launch")
    return network.RESET.finding(
        nodes=nodes,
        seen=f"connections of rank {names} to {fold(dict.fromkeys(each[2] for each in losses))} were ended, first that"
        f" to {address}, and no rank there had died",
        why="Something between the nodes ends connections: a firewall that was changed, a connection table that was"
        " flushed or is full, a filter.",
        fix=join_fixes(
            network.RESET.fix("let-in", rules=let_in(evidence, nodes, address)),
            network.RESET.fix("check", check=check),
        ),
    )


def _losses(evidence: Evidence) -> list[_Loss]:
    """Who lost a connection to which address of which other node."""
    children = [child for child in evidence.run.generation.children.values() if child.dead and child.raised is not None]
    found = [(child, _LOST.search(child.raised.message)) for child in children if child.raised is not None]
    named = [(child, match[1] or match[2]) for child, match in found if match is not None]
    return [
        (child, address, evidence.owners[address])
        for child, address in named
        if evidence.owners.get(address, child.node) != child.node
    ]


def _died_before(evidence: Evidence, loss: _Loss) -> bool:
    child, _address, peer = loss
    others = [each for each in evidence.run.generation.children.values() if each.node == peer and each.dead]
    return any(each.died_at <= child.died_at + _CLOCK_SECONDS for each in others)
