"""Connections between ranks that carry nothing any more: cut, down, or too narrow for what is sent."""

from collections import Counter
from collections.abc import Iterator

from aboard.core.doubts import in_trouble
from aboard.core.evidence import Evidence
from aboard.core.nodeset import fold, fold_quoted
from aboard.core.phase import Phase
from aboard.core.verdict import Cause, RuledOut, Said, Sure
from aboard.core.witness import Echo, Link, Socket, split
from aboard.core.words import many
from aboard.diagnoses import Diagnosis, Fix, Severity, hang, join_fixes, slow
from aboard.lazy import dataclass
from aboard.verdicts.commands import let_in, recheck, toward

_UP = ("up", "unknown", "")
# What fits into one packet is not lost for its size.
_ONE_PACKET = 1200
# Fits through the tunnels of VPNs and clouds.
_SMALL = 1400
# A way that is whole again is tried again within the time that it was cut for; after so long it was, and in vain.
_FORGOTTEN_SECONDS = 20.0
# Of packets to a node, some of which were answered, this part and at least so many are lost: it isn't cut.
_LOSSY, _LEAST_LOST = 0.1, 2
_FORGOTTEN = (
    "A firewall on the way has forgotten connections that were made before, as when its table was flushed, or drops"
    " what was silent for long: TCP tries for minutes."
)


@dataclass(frozen=True, kw_only=True)
class _Bad:
    """One connection in trouble: from which rank's node to which."""

    rank: int
    node: str
    peer: str
    socket: Socket


def cut(evidence: Evidence) -> Iterator[Said]:
    """Bytes that were sent again and again and never arrived, between nodes that all take part."""
    bad = list(_bad(evidence))
    if not bad:
        if any(view.phase >= Phase.GROUP for view in evidence.views) and evidence.witness:
            yield RuledOut(what="a cut link between ranks", why="no connection has bytes that it sends again")
        return
    ends = Counter(end for each in bad for end in {each.node, each.peer})
    pairs = {frozenset((each.node, each.peer)) for each in bad}
    most = max(ends.values())
    worst = sorted(end for end, count in ends.items() if count == most)
    nodes = _blamed(evidence, worst, bad, single=len(pairs) == 1)
    example = next((each for each in bad if each.node in nodes), bad[0])
    down = [(name, link) for name in nodes for link in _links(evidence, name) if link.state not in _UP]
    outcomes = {evidence.witness[each.node].dials.get(target) for each in bad for target in _tried(evidence, each)}
    echoes = _echoes(evidence, nodes)
    passes = bool(echoes) and all(each.small and each.large for each in echoes)
    narrow = any(each.small for each in echoes) and not any(each.large for each in echoes)
    if not any(each.small for each in echoes):
        # Nobody answers such packets here: a new connection, and more to send than fits into one packet, tell the same.
        narrow = "connected" in outcomes and min(each.socket.tx for each in bad) > _ONE_PACKET
    lossy = _lossy(echoes)
    diagnosis, seen, fix, why = _words(evidence, example, nodes, len(bad), down, narrow=narrow, lossy=lossy)
    silent = max((each.socket.silent or 0.0) for each in bad)
    back = (passes or "connected" in outcomes) and not narrow and not down and not lossy
    if back and silent >= _FORGOTTEN_SECONDS:
        back, seen, why = False, f"{seen}; new connections pass", _FORGOTTEN
    yield Cause(
        finding=diagnosis.finding(
            # What was cut and is whole again goes on by itself, at TCP's next try.
            severity=Severity.INFO if back else Severity.WARN if lossy else Severity.BLOCK,
            nodes=nodes,
            ranks=tuple(sorted({each.rank for each in bad if each.node in nodes})),
            seen=seen,
            why=why,
            fix=fix,
        ),
        sure=Sure.CERTAIN if len(pairs) > 1 or down else Sure.STRONG,
        since=evidence.now - silent,
    )


RULES = (cut,)


def _blamed(evidence: Evidence, worst: list[str], bad: list[_Bad], *, single: bool) -> tuple[str, ...]:
    """The end that others can't reach either; one that has a part in every pair; else both ends of the only pair."""
    ends = sorted({end for each in bad for end in (each.node, each.peer)})
    failing = {name: _failing(evidence, name) for name in ends}
    most = max(failing.values())
    if most > 0:
        named = tuple(name for name in ends if failing[name] == most)
        if len(named) == 1:
            return named
    return tuple(worst) if single else (worst[0],)


def _failing(evidence: Evidence, node: str) -> float:
    """The part of the others' packets that it did not answer, of either size."""
    told = _echoes(evidence, (node,))
    return sum(each.lost for each in told) / max(1, sum(each.sent for each in told))


def _echoes(evidence: Evidence, nodes: tuple[str, ...]) -> list[Echo]:
    return [
        each
        for name, node in evidence.witness.items()
        for address, each in node.echoes.items()
        if name not in nodes and evidence.owners.get(address) in nodes
    ]


def _lossy(echoes: list[Echo]) -> str:
    """How many packets were lost where others of their size got through; empty where all did, or none."""
    through = [each for each in echoes if each.small and each.large]
    sent, lost = sum(each.sent for each in through), sum(each.lost for each in through)
    return f"{lost} of {sent} packets to it were lost" if lost >= max(_LEAST_LOST, _LOSSY * sent) else ""


def _bad(evidence: Evidence) -> Iterator[_Bad]:
    for view in evidence.views:
        if view.alive and view.seen is not None:
            for each in view.seen.sockets:
                peer = evidence.owners.get(split(each.remote)[0])
                if peer is not None and peer != view.node and in_trouble(each):
                    yield _Bad(rank=view.rank, node=view.node, peer=peer, socket=each)


def _links(evidence: Evidence, node: str) -> list[Link]:
    """The cards by which its ranks speak."""
    seen = evidence.witness.get(node)
    if seen is None:
        return []
    used = {
        split(each.local)[0] for view in evidence.views if view.node == node and view.seen for each in view.seen.sockets
    }
    names = {interface for interface, address in seen.addresses if address in used}
    return [link for link in seen.links if link.name in names]


def _tried(evidence: Evidence, bad: _Bad) -> list[tuple[str, int]]:
    address = split(bad.socket.remote)[0]
    return [target for target in evidence.witness[bad.node].dials if target[0] == address]


def _words(
    evidence: Evidence,
    example: _Bad,
    nodes: tuple[str, ...],
    count: int,
    down: list[tuple[str, Link]],
    *,
    narrow: bool,
    lossy: str,
) -> tuple[Diagnosis, str, Fix, str | None]:
    who, each = fold(nodes), example.socket
    other = example.peer if example.node in nodes else example.node
    stuck = (
        f"{many(count, 'connection')} of {who} carr{'y' if count != 1 else 'ies'} nothing: rank"
        f" {example.rank} on {example.node} has {each.tx:,} bytes for {each.remote} ({example.peer}), sent"
        f" {many(each.resent, 'time')} again"
    )
    target = split(each.remote)[0]
    check = recheck(evidence, (*nodes, other), "network", "where it is cut, and which way")
    if down:
        name, link = down[0]
        return (
            hang.LINK_DOWN,
            f"{stuck}; the network card {link.name} of {name} is {link.state}",
            hang.LINK_DOWN.fix(card=link.name, node=name),
            None,
        )
    if narrow:
        ping = hang.BIG_PACKETS.fix("ping", target=target, node=example.node)
        fix = join_fixes(ping, *_smaller(evidence, target))
        return hang.BIG_PACKETS, f"{stuck}; small packets are answered", fix, None
    if lossy:
        fix = slow.LINK.fix("errors", nodes=fold_quoted(nodes), check=check)
        return slow.LINK, f"{stuck}; {lossy}", fix, None
    gone = [(name, address) for name, address in _ends(example) if _gone(evidence, name, address)]
    again = hang.LINK_CUT.fix("check", check=check)
    if gone:
        name, address = gone[0]
        return (
            hang.LINK_CUT,
            f"{stuck}; {name} has the address {address} no more",
            join_fixes(hang.LINK_CUT.fix("address", node=name, address=address), again),
            "Somebody or something (a DHCP client, a restart of the network) took the address away that its ranks use.",
        )
    opened = hang.LINK_CUT.fix("open", rules=let_in(evidence, nodes, target))
    return hang.LINK_CUT, stuck, join_fixes(opened, again), None


def _ends(bad: _Bad) -> list[tuple[str, str]]:
    return [(bad.node, split(bad.socket.local)[0]), (bad.peer, split(bad.socket.remote)[0])]


def _gone(evidence: Evidence, node: str, address: str) -> bool:
    seen = evidence.witness.get(node)
    return seen is not None and bool(seen.addresses) and address not in {each for _card, each in seen.addresses}


def _smaller(evidence: Evidence, target: str) -> Iterator[Fix]:
    """A size that most networks carry, on all nodes: what is sent to the bad one must fit, too."""
    cards: dict[str, list[str]] = {}
    for part in evidence.plan.parts:
        own = toward(evidence, part.node.name, target)
        if own is not None:
            cards.setdefault(own[0], []).append(part.node.name)
    for card, names in cards.items():
        yield hang.BIG_PACKETS.fix("smaller", card=card, size=_SMALL, nodes=fold_quoted(names))
