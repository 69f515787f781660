"""What to query after the first snapshot: connections to try and names to resolve, by node."""

from collections.abc import Iterator, Mapping
from dataclasses import field

from aboard.core.evidence.node_snapshot import TcpConnection, split_endpoint
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.rank_phases import Phase
from aboard.lazy_dataclass import dataclass

# A connection is in trouble if its peer has been silent for this long, or if it sends the same data a second time.
SILENT_SECONDS = 1.0
RESENT = 2
MOST_TARGETS = 32
# Limits of nodes that send packets and of those that get them: enough to find the bad end of a link.
MOST_SENDERS, MOST_SUSPECTS = 8, 8


@dataclass(frozen=True, kw_only=True)
class FollowUpQuery:
    """The queries for one node: addresses to dial, names to resolve, and peers to send packets to."""

    targets: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    names: frozenset[str] = field(default_factory=frozenset)
    echoes: frozenset[str] = field(default_factory=frozenset)


def build_follow_up_queries(evidence: Evidence) -> Mapping[str, FollowUpQuery]:
    """The queries by node; empty where the first snapshot is enough."""
    queries: dict[str, FollowUpQuery] = {}
    suspects = sorted(_find_suspects(evidence))[:MOST_SUSPECTS]
    for number, node in enumerate(evidence.snapshots):
        targets = {*_list_store_targets(evidence, node), *_list_peer_targets(evidence, node)}
        names = {host for host, _port in targets if not is_address(host)}
        # A refusal may be older than rank 0's store: it counts only if it is repeated after rank 0 has been seen.
        dials = evidence.snapshots[node].dials
        new_targets = {target for target in targets if dials.get(target, "refused") == "refused"}
        own = {address for _interface, address in evidence.snapshots[node].addresses}
        echoes = {address for address in suspects if address not in own} if number < MOST_SENDERS else set()
        if new_targets or names or echoes:
            queries[node] = FollowUpQuery(
                targets=frozenset(sorted(new_targets)[:MOST_TARGETS]),
                names=frozenset(sorted(names)[:MOST_TARGETS]),
                echoes=frozenset(echoes),
            )
    return queries


def _find_suspects(evidence: Evidence) -> set[str]:
    """Both ends of every connection in trouble: other nodes then show which end they can reach."""
    found = set()
    for view in evidence.views:
        for each in view.seen.sockets if view.seen is not None else ():
            remote = split_endpoint(each.remote)[0]
            if is_stalled(each) and evidence.owners.get(remote) not in (None, view.node):
                found |= {remote, split_endpoint(each.local)[0]}
    return {address for address in found if ":" not in address}


def _list_store_targets(evidence: Evidence, node: str) -> Iterator[tuple[str, int]]:
    """Where the node's ranks expect the store, if that isn't the planned address."""
    for view in evidence.views:
        joining = view.seen.joining if view.seen is not None and view.node == node else None
        if joining is not None and view.phase < Phase.GROUP and joining.host:
            yield joining.host, joining.port


def _list_peer_targets(evidence: Evidence, node: str) -> Iterator[tuple[str, int]]:
    """A listening port at the far end of each connection in trouble, to test whether new connections work."""
    for view in evidence.views:
        if view.node == node and view.seen is not None:
            for each in view.seen.sockets:
                if each.state == "SYN_SENT":
                    yield split_endpoint(each.remote)
                elif is_stalled(each):
                    yield from _find_listener(evidence, split_endpoint(each.remote)[0])


def _find_listener(evidence: Evidence, address: str) -> Iterator[tuple[str, int]]:
    owner = evidence.owners.get(address)
    for view in evidence.views:
        if view.node == owner and view.seen is not None:
            for each in view.seen.sockets:
                host, port = split_endpoint(each.local)
                if each.state == "LISTEN" and host in (address, "0.0.0.0", "::"):  # noqa: S104 - read, not bound
                    yield address, port
                    return


def is_stalled(each: TcpConnection) -> bool:
    """Whether it has unacknowledged data that the peer doesn't take."""
    stale = each.silent is not None and each.silent >= SILENT_SECONDS
    return each.state == "ESTABLISHED" and each.tx > 0 and (each.resent >= RESENT or (stale and each.resent > 0))


def is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
