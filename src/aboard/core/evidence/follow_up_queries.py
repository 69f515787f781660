"""What a first look leaves open and a second one can settle: connections to try, names to resolve, node by node."""

from collections.abc import Iterator, Mapping
from dataclasses import field

from aboard.core.evidence.node_snapshot import TcpConnection, split_endpoint
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.rank_phases import Phase
from aboard.lazy_dataclass import dataclass

# A connection whose peer has been silent for so long, or that sends the same for the second time, is in trouble.
SILENT_SECONDS = 1.0
RESENT = 2
MOST_TARGETS = 32
# Who is asked to send packets to whom: enough to tell which end of a bad link is the bad one.
MOST_SENDERS, MOST_SUSPECTS = 8, 8


@dataclass(frozen=True, kw_only=True)
class FollowUpQuery:
    """Questions to one node: addresses to dial from there, names to resolve there, peers to send packets to."""

    targets: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    names: frozenset[str] = field(default_factory=frozenset)
    echoes: frozenset[str] = field(default_factory=frozenset)


def build_follow_up_queries(evidence: Evidence) -> Mapping[str, FollowUpQuery]:
    """By node; none where the first look was enough."""
    queries: dict[str, FollowUpQuery] = {}
    suspects = sorted(_find_suspects(evidence))[:MOST_SUSPECTS]
    for number, node in enumerate(evidence.snapshots):
        targets = {*_list_store_targets(evidence, node), *_list_peer_targets(evidence, node)}
        names = {host for host, _port in targets if not is_address(host)}
        new_targets = {target for target in targets if target not in evidence.snapshots[node].dials}
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
    """Both ends of every connection that is in trouble: the others tell which of them they reach."""
    found = set()
    for view in evidence.views:
        for each in view.seen.sockets if view.seen is not None else ():
            remote = split_endpoint(each.remote)[0]
            if is_stalled(each) and evidence.owners.get(remote) not in (None, view.node):
                found |= {remote, split_endpoint(each.local)[0]}
    return {address for address in found if ":" not in address}


def _list_store_targets(evidence: Evidence, node: str) -> Iterator[tuple[str, int]]:
    """Where its ranks look for the store, if that isn't where they were sent."""
    for view in evidence.views:
        joining = view.seen.joining if view.seen is not None and view.node == node else None
        if joining is not None and view.phase < Phase.GROUP and joining.host:
            yield joining.host, joining.port


def _list_peer_targets(evidence: Evidence, node: str) -> Iterator[tuple[str, int]]:
    """Somebody who listens at the far end of a connection that is in trouble, to see whether new ones get through."""
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
    """It has something to send, and nobody takes it."""
    stale = each.silent is not None and each.silent >= SILENT_SECONDS
    return each.state == "ESTABLISHED" and each.tx > 0 and (each.resent >= RESENT or (stale and each.resent > 0))


def is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
