"""Halving, in simulated worlds: whatever is bad is named, nothing else is, in O(log n) rounds."""

from collections.abc import Iterable
from math import ceil, log2

from hypothesis import example, given, strategies as st

from aboard.doctor.collective.fault_bisection import NodeGroup, locate_faults

Pair = tuple[str, str]


class World:
    """Nodes of which some are bad, and links of which some are: a group with any of them fails."""

    def __init__(self, count: int, *, nodes: Iterable[int] = (), links: Iterable[tuple[int, int]] = ()) -> None:
        self.names = [f"n{at}" for at in range(count)]
        self.nodes = {f"n{at}" for at in nodes}
        self.links = [{f"n{a}", f"n{b}"} for a, b in links]
        self.rounds = 0
        self.largest = 0

    def well(self, group: NodeGroup) -> bool:
        return not self.nodes & set(group) and not any(link <= set(group) for link in self.links)

    def search(self, told: Iterable[Pair] = ()) -> list[set[str]]:
        search = locate_faults(self.names, told)
        try:
            groups = next(search)
            while True:
                names = [name for group in groups for name in group]
                assert len(names) == len(set(names)), "a node in two groups at once"
                assert all(len(group) >= 2 for group in groups)
                assert set(names) <= set(self.names)
                self.rounds += 1
                groups = search.send([self.well(group) for group in groups])
        except StopIteration as done:
            return [set(blame) for blame in done.value]


COUNTS = st.integers(min_value=3, max_value=80)


@st.composite
def one_bad(draw: st.DrawFn) -> tuple[int, int]:
    count = draw(COUNTS)
    return count, draw(st.integers(0, count - 1))


@st.composite
def two_of(draw: st.DrawFn) -> tuple[int, int, int]:
    count = draw(st.integers(min_value=4, max_value=80))
    one, other = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    return count, one, other


@given(one_bad())
def test_a_bad_node_is_named(drawn: tuple[int, int]) -> None:
    """That one and no other, in a round per halving and a few to be sure."""
    count, bad = drawn
    world = World(count, nodes=[bad])
    assert world.search() == [{f"n{bad}"}]
    assert world.rounds <= ceil(log2(count)) + 4


@given(two_of())
def test_a_bad_link_is_named(drawn: tuple[int, int, int]) -> None:
    """Both its ends, in at most four quarters per halving."""
    count, one, other = drawn
    world = World(count, links=[(one, other)])
    assert world.search() == [{f"n{one}", f"n{other}"}]
    assert world.rounds <= 2 * ceil(log2(count)) + 5


@given(two_of())
def test_two_bad_nodes_are_named(drawn: tuple[int, int, int]) -> None:
    """Both, whichever halves they are in, and nobody who merely was with them."""
    count, one, other = drawn
    world = World(count, nodes=[one, other])
    assert sorted(world.search(), key=str) == sorted([{f"n{one}"}, {f"n{other}"}], key=str)
    assert world.rounds <= 3 * ceil(log2(count)) + 8


@given(two_of(), st.data())
def test_what_nodes_say_saves_rounds(drawn: tuple[int, int, int], data: st.DataObject) -> None:
    """A bad node that all others wait for is named in two rounds, and a link of which one end tells in three."""
    count, bad, other = drawn
    world = World(count, nodes=[bad])
    waiting = data.draw(st.lists(st.integers(0, count - 1).filter(lambda at: at != bad), min_size=2, unique=True))
    assert world.search([(f"n{at}", f"n{bad}") for at in waiting]) == [{f"n{bad}"}]
    assert world.rounds <= 2
    link = World(count, links=[(bad, other)])
    assert link.search([(f"n{bad}", f"n{other}")]) == [{f"n{bad}", f"n{other}"}]
    assert link.rounds <= 3


@example((5, 2, 0), [(0, 38), (1, 54)])
@given(two_of(), st.lists(st.tuples(st.integers(0, 79), st.integers(0, 79)), max_size=4))
def test_what_nodes_say_may_be_wrong(drawn: tuple[int, int, int], lies: list[tuple[int, int]]) -> None:
    """The bad node is named all the same, and none that was slandered."""
    count, bad, _other = drawn
    world = World(count, nodes=[bad])
    told = [(f"n{one % count}", f"n{other % count}") for one, other in lies]
    assert world.search(told) == [{f"n{bad}"}]


@given(COUNTS, st.lists(st.tuples(st.integers(0, 79), st.integers(0, 79)), max_size=3))
def test_nothing_is_named_when_all_is_well_again(count: int, lies: list[tuple[int, int]]) -> None:
    """A failure that doesn't come back is nobody's."""
    told = [(f"n{one % count}", f"n{other % count}") for one, other in lies]
    assert World(count).search(told) == []


def test_two_nodes_have_one_link() -> None:
    """With nobody to compare with, it is the link."""
    assert World(2, nodes=[0]).search() == [{"n0", "n1"}]


def test_a_link_of_two_nodes_is_named_only_if_it_fails_again() -> None:
    """One stall on a busy machine is no broken link, on two nodes no more than on many."""
    assert World(2).search() == []
