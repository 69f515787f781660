"""Decides which piece the head sends to which node, from what the nodes have and how they are connected."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import reduce
from operator import or_

from aboard.lazy_dataclass import dataclass

# A node that receives nothing for this long, although its peers have what it lacks, gets it from the head.
STALL_SECONDS = 5.0
# Nodes get this long to connect to each other before the head decides that they can't.
SETTLE_SECONDS = 3.5
# And so long to hash what an earlier transfer left, before the head sends something that may be there.
HASH_SECONDS = 10.0


@dataclass(kw_only=True)
class PlanMember:
    """One node's part: bits of the pieces that it needs and has, and the numbers of connected peers.

    `since` is when it connected or a round began, `received_at` when it last got bytes from a peer, `sent_at` when it
    last got a piece from the head.
    """

    needs: int = 0
    has: int = 0
    links: frozenset[int] = frozenset()
    expected: frozenset[int] = frozenset()
    ready: bool = False
    since: float = 0.0
    received_at: float = 0.0
    sent_at: float = 0.0
    in_transit: set[int] = field(default_factory=set)

    @property
    def lacks(self) -> int:
        return self.needs & ~self.has


def choose_piece(member: PlanMember, group: Mapping[int, PlanMember], now: float) -> int | None:
    """The next piece for this node: one that no node in reach has; or any that it lacks, if its peers send nothing.

    Of a group of connected nodes, each piece goes to one. A node without a connection is a group of its own.
    """
    waited = now - member.since
    settled = waited > SETTLE_SECONDS or member.expected <= group.keys()
    known = waited > HASH_SECONDS or all(each.ready for each in group.values())
    if not (member.lacks and member.ready and settled and known):
        return None
    coming = _join_bits(1 << piece for each in group.values() for piece in each.in_transit)
    fresh = member.lacks & ~coming & ~_join_bits(each.has for each in group.values())
    if fresh:
        return _find_lowest_bit(fresh)
    # While the head sends to the group, a node may just wait for its turn.
    active_at = max(member.received_at, *(each.sent_at for each in group.values()))
    if not member.in_transit and now - active_at > STALL_SECONDS:
        late = member.lacks & ~coming
        return _find_lowest_bit(late) if late else None
    return None


def find_group(members: Mapping[int, PlanMember], number: int) -> set[int]:
    """The nodes that pieces can reach from this one; both ends of a connection must report it."""
    group, new = {number}, [number]
    while new:
        here = new.pop()
        for peer in members[here].links:
            if peer not in group and peer in members and here in members[peer].links:
                group.add(peer)
                new.append(peer)
    return group


def _join_bits(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _find_lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
