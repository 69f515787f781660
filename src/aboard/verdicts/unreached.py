"""Ranks that gave up because a peer could not be reached while they met: whom they name is the cause, not they."""

import re
from collections import Counter

from aboard.core.evidence import Evidence
from aboard.core.head import is_loopback
from aboard.core.rankset import fold_ranks
from aboard.core.run import Child
from aboard.diagnoses import Finding, join_fixes, rendezvous
from aboard.verdicts.opening import let_in, off_loopback
from aboard.verdicts.recheck import recheck

_MESH = re.compile(r"connectFullMesh failed.*?remote=\[([0-9a-fA-F.:]+)\]", re.DOTALL)
_REFUSED = re.compile(r"connection refused", re.IGNORECASE)


def unreached(evidence: Evidence) -> Finding | None:
    """The node that most of them could not reach; if only one node complains, and of several, that one."""
    tried = [(child, match[1]) for child in _dead(evidence) if (match := _MESH.search(_text(child))) is not None]
    looped = [child for child, address in tried if is_loopback(address)]
    if looped and len(evidence.plan.parts) > 1:
        return _loopback(evidence, looped)
    tries = [(child, address, evidence.owners.get(address, "")) for child, address in tried]
    tries = [(child, address, peer) for child, address, peer in tries if peer not in ("", child.node)]
    if not tries:
        return None
    peers, sources = Counter(peer for _child, _address, peer in tries), {child.node for child, *_whom in tries}
    blamed = next(iter(sources)) if len(peers) > 1 and len(sources) == 1 else peers.most_common(1)[0][0]
    first, address, peer = min(tries, key=lambda each: each[0].died_at)
    refused = _REFUSED.search(_text(first)) is not None
    verb = "is refused by" if refused else "gets no answer from"
    names = fold_ranks(sorted(int(child.name) for child, *_whom in tries if child.name.isdigit()))
    diagnosis = rendezvous.PEER_REFUSED if refused else rendezvous.PEER_DROPPED
    check = recheck(evidence, (blamed, first.node, peer), "network", "before the next launch")
    return diagnosis.finding(
        nodes=(blamed,),
        ranks=tuple(_ranks(evidence, blamed)),
        seen=f"rank {names} {verb} {address} on {peer}, where rank {fold_ranks(_ranks(evidence, peer))} listens for its"
        " peers",
        why="Ranks connect to each other at ports that the kernel chooses: a firewall closes these, not the store's.",
        fix=join_fixes(
            diagnosis.fix("open", rules=let_in(evidence, (blamed,), address)), diagnosis.fix("check", check=check)
        ),
    )


def _loopback(evidence: Evidence, tried: list[Child]) -> Finding:
    """Who was told to connect to itself does not know by whom: nodes whose own name is the loopback, or else all."""
    named = tuple(name for name, node in evidence.witness.items() if node.names_itself_loopback)
    blamed = named or tuple(part.node.name for part in evidence.plan.parts)
    names = fold_ranks(sorted(int(child.name) for child in tried if child.name.isdigit()))
    return rendezvous.LOOPBACK.finding(
        nodes=blamed,
        seen=f"rank {names} was told by a peer to connect to 127.0.0.1, where only its own node is",
        why="The interface that was set is the loopback, or a node's own name stands for it in /etc/hosts.",
        fix=off_loopback(evidence, blamed),
    )


def _dead(evidence: Evidence) -> list[Child]:
    return [child for child in evidence.run.generation.children.values() if child.dead]


def _ranks(evidence: Evidence, name: str) -> list[int]:
    return [start.rank or 0 for node, start in evidence.plan.starts() if node == name]


def _text(child: Child) -> str:
    return f"{child.raised.type}: {child.raised.message}" if child.raised is not None else ""
