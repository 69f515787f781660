"""Connections between ranks that carry no data: cut, down, or with too small an MTU on the path."""

from collections import Counter
from collections.abc import Iterator

from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.evidence.follow_up_queries import is_stalled
from aboard.core.evidence.node_snapshot import NicTraffic, PingResult, TcpConnection, split_endpoint
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.run.rank_phases import Phase
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Confidence, Fix, RunFailure, Severity, join_fixes
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.shared.fix_commands import LINK_UP, build_check_command, build_firewall_rules, find_nearest_address
from aboard.doctor.slow import diagnoses as slow
from aboard.lazy_dataclass import dataclass

_UP = ("up", "unknown", "")
# Data that fits into one packet is not lost for its size.
_ONE_PACKET = 1200
# Fits through the tunnels of VPNs and clouds.
_SMALL = 1400
# TCP retries within as long as the path was cut, so after this long a repaired path has been retried in vain.
_FORGOTTEN_SECONDS = 20.0
# A node that replies to some packets is lossy, not cut, if at least this share and number of packets are lost.
_LOSSY, _LEAST_LOST = 0.1, 2
_FORGOTTEN = (
    "A firewall on the path may have lost the state of existing connections (when its table was flushed), or it may"
    " drop connections that were idle for a long time. TCP retries for minutes."
)


@dataclass(frozen=True, kw_only=True)
class _StalledConnection:
    """One stalled connection, from a rank's node to its peer."""

    rank: int
    node: str
    peer: str
    socket: TcpConnection


def find_cut_links(evidence: Evidence) -> Iterator[RuleResult]:
    """Connections between the run's nodes that retransmit without success."""
    bad = list(_list_stalled_connections(evidence))
    if not bad:
        if any(view.phase >= Phase.GROUP for view in evidence.views) and evidence.snapshots:
            yield RuledOut(what="a cut link between ranks", why="no connection is retransmitting")
        return
    ends = Counter(end for each in bad for end in {each.node, each.peer})
    pairs = {frozenset((each.node, each.peer)) for each in bad}
    most = max(ends.values())
    worst = sorted(end for end, count in ends.items() if count == most)
    nodes = _pick_blamed_nodes(evidence, worst, bad, single=len(pairs) == 1)
    example = next((each for each in bad if each.node in nodes), bad[0])
    down = [(name, link) for name in nodes for link in _list_used_links(evidence, name) if link.state not in LINK_UP]
    outcomes = {
        evidence.snapshots[each.node].dials.get(target)
        for each in bad
        for target in _list_dialled_targets(evidence, each)
    }
    echoes = _list_echoes(evidence, nodes)
    passes = bool(echoes) and all(each.small and each.large for each in echoes)
    narrow = any(each.small for each in echoes) and not any(each.large for each in echoes)
    if not any(each.small for each in echoes):
        # Pings are filtered here: a new connection works and the queue exceeds one packet, which shows the same.
        narrow = "connected" in outcomes and min(each.socket.tx for each in bad) > _ONE_PACKET
    lossy = _describe_loss(echoes)
    diagnosis, seen, fix, why = _describe_failure(evidence, example, nodes, len(bad), down, narrow=narrow, lossy=lossy)
    silent = max((each.socket.silent or 0.0) for each in bad)
    back = (passes or "connected" in outcomes) and not narrow and not down and not lossy
    if back and silent >= _FORGOTTEN_SECONDS:
        back, seen, why = False, f"{seen}; new connections work", _FORGOTTEN
    yield diagnosis.finding(
        # A path that works again recovers at TCP's next retry.
        severity=Severity.INFO if back else Severity.WARN if lossy else Severity.BLOCK,
        nodes=nodes,
        ranks=tuple(sorted({each.rank for each in bad if each.node in nodes})),
        seen=seen,
        why=why,
        fix=fix,
    ).as_cause(Confidence.CERTAIN if len(pairs) > 1 or down else Confidence.STRONG, since=evidence.now - silent)


RULES = (find_cut_links,)


def _pick_blamed_nodes(
    evidence: Evidence, worst: list[str], bad: list[_StalledConnection], *, single: bool
) -> tuple[str, ...]:
    """The end that others can't reach either, else the one in every pair, else both ends of the only pair."""
    ends = sorted({end for each in bad for end in (each.node, each.peer)})
    failing = {name: _measure_loss(evidence, name) for name in ends}
    most = max(failing.values())
    if most > 0:
        named = tuple(name for name in ends if failing[name] == most)
        if len(named) == 1:
            return named
    return tuple(worst) if single else (worst[0],)


def _measure_loss(evidence: Evidence, node: str) -> float:
    """The share of the others' packets that got no reply from it, of either size."""
    echoes = _list_echoes(evidence, (node,))
    return sum(each.lost for each in echoes) / max(1, sum(each.sent for each in echoes))


def _list_echoes(evidence: Evidence, nodes: tuple[str, ...]) -> list[PingResult]:
    return [
        each
        for name, node in evidence.snapshots.items()
        for address, each in node.echoes.items()
        if name not in nodes and evidence.owners.get(address) in nodes
    ]


def _describe_loss(echoes: list[PingResult]) -> str:
    """How many packets were lost where others of their size got through; empty where all or none did."""
    through = [each for each in echoes if each.small and each.large]
    sent, lost = sum(each.sent for each in through), sum(each.lost for each in through)
    return f"{lost} of {sent} packets to it were lost" if lost >= max(_LEAST_LOST, _LOSSY * sent) else ""


def _list_stalled_connections(evidence: Evidence) -> Iterator[_StalledConnection]:
    for view in evidence.views:
        if view.alive and view.seen is not None:
            for each in view.seen.sockets:
                peer = evidence.owners.get(split_endpoint(each.remote)[0])
                if peer is not None and peer != view.node and is_stalled(each):
                    yield _StalledConnection(rank=view.rank, node=view.node, peer=peer, socket=each)


def _list_used_links(evidence: Evidence, node: str) -> list[NicTraffic]:
    """The NICs that its ranks use."""
    snapshot = evidence.snapshots.get(node)
    if snapshot is None:
        return []
    used = {
        split_endpoint(each.local)[0]
        for view in evidence.views
        if view.node == node and view.seen
        for each in view.seen.sockets
    }
    names = {interface for interface, address in snapshot.addresses if address in used}
    return [link for link in snapshot.links if link.name in names]


def _list_dialled_targets(evidence: Evidence, bad: _StalledConnection) -> list[tuple[str, int]]:
    address = split_endpoint(bad.socket.remote)[0]
    return [target for target in evidence.snapshots[bad.node].dials if target[0] == address]


def _describe_failure(
    evidence: Evidence,
    example: _StalledConnection,
    nodes: tuple[str, ...],
    count: int,
    down: list[tuple[str, NicTraffic]],
    *,
    narrow: bool,
    lossy: str,
) -> tuple[RunFailure, str, Fix, str | None]:
    who, each = fold_names(nodes), example.socket
    other = example.peer if example.node in nodes else example.node
    stuck = (
        f"{format_count(count, 'connection')} of {who} carr{'y' if count != 1 else 'ies'} no data: rank"
        f" {example.rank} on {example.node} has {each.tx:,} bytes queued for {each.remote} ({example.peer}),"
        f" retransmitted {format_count(each.resent, 'time')}"
    )
    target = split_endpoint(each.remote)[0]
    check = build_check_command(
        evidence, (*nodes, other), "network", "shows where the link is cut, and in which direction"
    )
    if down:
        name, link = down[0]
        return (
            hang.LINK_DOWN,
            f"{stuck}; NIC {link.name} on {name} is {link.state}",
            hang.LINK_DOWN.fix(card=link.name, node=name),
            None,
        )
    if narrow:
        ping = hang.BIG_PACKETS.fix("ping", target=target, node=example.node)
        fix = join_fixes(ping, *_build_mtu_fixes(evidence, target))
        return hang.BIG_PACKETS, f"{stuck}; small packets get replies", fix, None
    if lossy:
        fix = slow.LINK.fix("errors", nodes=quote_folded_names(nodes), check=check)
        return slow.LINK, f"{stuck}; {lossy}", fix, None
    removed = [(name, address) for name, address in _list_ends(example) if _is_address_gone(evidence, name, address)]
    again = hang.LINK_CUT.fix("check", check=check)
    if removed:
        name, address = removed[0]
        return (
            hang.LINK_CUT,
            f"{stuck}; {name} no longer has the address {address}",
            join_fixes(hang.LINK_CUT.fix("address", node=name, address=address), again),
            "Something, such as a DHCP client or a network restart, removed the address that the node's ranks use.",
        )
    opened = hang.LINK_CUT.fix("open", rules=build_firewall_rules(evidence, nodes, target))
    return hang.LINK_CUT, stuck, join_fixes(opened, again), None


def _list_ends(bad: _StalledConnection) -> list[tuple[str, str]]:
    return [(bad.node, split_endpoint(bad.socket.local)[0]), (bad.peer, split_endpoint(bad.socket.remote)[0])]


def _is_address_gone(evidence: Evidence, node: str, address: str) -> bool:
    snapshot = evidence.snapshots.get(node)
    return (
        snapshot is not None
        and bool(snapshot.addresses)
        and address not in {each for _card, each in snapshot.addresses}
    )


def _build_mtu_fixes(evidence: Evidence, target: str) -> Iterator[Fix]:
    """An MTU that most networks carry, for all nodes: packets to the bad one must fit, too."""
    cards: dict[str, list[str]] = {}
    for part in evidence.plan.parts:
        own = find_nearest_address(evidence, part.node.name, target)
        if own is not None:
            cards.setdefault(own[0], []).append(part.node.name)
    for card, names in cards.items():
        yield hang.BIG_PACKETS.fix("smaller", card=card, size=_SMALL, nodes=quote_folded_names(names))
