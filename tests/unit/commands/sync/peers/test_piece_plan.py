"""Which piece the head sends to which node: each once to a group of connected nodes, and all to a node without one."""

from collections.abc import Sequence

from aboard.commands.sync.peers.peer_findings import group_pairs
from aboard.commands.sync.peers.piece_plan import (
    HASH_SECONDS,
    SETTLE_SECONDS,
    STALL_SECONDS,
    PlanMember,
    choose_piece,
    find_group,
)

NOW = 1000.0


def member(*links: int, has: int = 0, needs: int = 0b1111, **fields: object) -> PlanMember:
    plan = PlanMember(needs=needs, has=has, links=frozenset(links), expected=frozenset(links), ready=True)
    plan.since = plan.received_at = plan.sent_at = NOW
    for name, value in fields.items():
        setattr(plan, name, value)
    return plan


def number(group: Sequence[PlanMember]) -> dict[int, PlanMember]:
    return dict(enumerate(group))


def test_a_piece_goes_to_one_node_of_a_group() -> None:
    """What a peer has, or is being sent, is not sent again."""
    one, other = member(1, has=0b0001), member(0, in_transit={1})
    assert choose_piece(one, number([one, other]), NOW) == 2
    assert choose_piece(other, number([one, other]), NOW) == 2
    assert choose_piece(one, number([one, member(0, has=0b1111)]), NOW) is None


def test_a_node_without_connections_gets_everything() -> None:
    """What nodes have that it can't reach does not help it."""
    alone = member(has=0b0001)
    assert choose_piece(alone, number([alone]), NOW) == 1


def test_nothing_is_sent_before_connections_are_known() -> None:
    """Neither while a node still connects, for a time, nor while it hashes what it has."""
    early = member(expected=frozenset({1}))
    assert choose_piece(early, number([early]), NOW) is None
    assert choose_piece(early, number([early]), NOW + SETTLE_SECONDS + 0.1) == 0
    hashing, ready = member(1, ready=False), member(0)
    assert choose_piece(hashing, number([hashing, ready]), NOW) is None
    assert choose_piece(ready, number([hashing, ready]), NOW) is None
    assert choose_piece(ready, number([hashing, ready]), NOW + HASH_SECONDS + 0.1) == 0


def test_a_node_that_its_peers_starve_is_helped() -> None:
    """After some seconds without a byte; not while the head still sends to its group, and one piece at a time."""
    full, starved = member(1, has=0b1111), member(0, has=0b0001)
    assert choose_piece(starved, number([full, starved]), NOW + STALL_SECONDS - 0.1) is None
    assert choose_piece(starved, number([full, starved]), NOW + STALL_SECONDS + 0.1) == 1
    starved.in_transit = {1}
    assert choose_piece(starved, number([full, starved]), NOW + STALL_SECONDS + 0.1) is None
    starved.in_transit, full.sent_at = set(), NOW + STALL_SECONDS
    assert choose_piece(starved, number([full, starved]), NOW + STALL_SECONDS + 0.1) is None


def test_groups_need_both_ends() -> None:
    """A connection that only one end reports is about to come or go."""
    members = {0: member(1), 1: member(0, 2), 2: member(1), 3: member(2), 4: member()}
    assert [find_group(members, number) for number in members] == [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {3}, {4}]


def test_the_node_that_misses_most_peers_is_named() -> None:
    """One blocked node in a cluster is one line, not one for each of its peers."""
    pairs = [frozenset(pair) for pair in ((1, 3), (2, 3), (3, 4), (5, 6))]
    assert list(group_pairs(pairs)) == [(3, (1, 2, 4)), (5, (6,))]
