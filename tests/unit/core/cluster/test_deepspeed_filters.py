"""DeepSpeed's include and exclude."""

import pytest
from hypothesis import given, strategies as st

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_filters import filter_nodes
from aboard.diagnoses import InputError

NODES = tuple(Node(name=f"worker-{number}", slots=4) for number in range(3))


def left(nodes: tuple[Node, ...] = NODES, **filters: str) -> dict[str, tuple[int, ...] | None]:
    return {node.name: node.picked for node in filter_nodes(nodes, **filters)}


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("", {"worker-0": None, "worker-1": None, "worker-2": None}),
        ("worker-1", {"worker-1": None}),
        ("worker-0@worker-1:0,2", {"worker-0": None, "worker-1": (0, 2)}),
        ("worker-2@worker-0", {"worker-0": None, "worker-2": None}),
        ("worker-0:2,0,2", {"worker-0": (0, 2)}),
        ("worker-0:1@worker-0:0,1", {"worker-0": (0, 1)}),
        ("worker-0@worker-0:1", {"worker-0": (1,)}),
        ("worker-0:0,1,2,3", {"worker-0": None}),
        ("worker-[0-1]:3", {"worker-0": (3,), "worker-1": (3,)}),
        ("worker-[0,2]@worker-1: 1", {"worker-0": None, "worker-1": (1,), "worker-2": None}),
    ],
)
def test_include(include: str, expected: dict[str, tuple[int, ...] | None]) -> None:
    """What is named stays, in the order of the nodes; slots are sorted, and add up for a host named twice."""
    assert left(include=include) == expected


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        ("worker-1", {"worker-0": None, "worker-2": None}),
        ("worker-0:0,1@worker-1:3", {"worker-0": (2, 3), "worker-1": (0, 1, 2), "worker-2": None}),
        ("worker-0:0,1,2,3", {"worker-1": None, "worker-2": None}),
        ("worker-[0-1]", {"worker-2": None}),
    ],
)
def test_exclude(exclude: str, expected: dict[str, tuple[int, ...] | None]) -> None:
    """What is named goes, and a host without a slot left goes with it."""
    assert left(exclude=exclude) == expected


@pytest.mark.parametrize(
    ("include", "seen", "fix"),
    [
        ("jeff", "no node is called 'jeff'", "the nodes are worker-[0-2]"),
        ("worker-9", "no node is called 'worker-9'", "did you mean 'worker-"),
        ("worker-1:4", "worker-1 has no slot 4", "worker-1 has slots 0 to 3"),
        ("worker-1@worker-0:1@5", "no node is called '5'", "the nodes are"),
        ("worker-0:0,worker-1", "not a list of slot numbers", '--include "worker-0:0@worker-1"'),
        ("worker-0,worker-1", "separated by '@'", '--include "worker-0@worker-1"'),
        ("worker-0:", "not a list of slot numbers", "worker-0:0,2"),
        ("worker-0@", "no node was given", "specify a node"),
        ("worker-[0-1", "never closed", "worker-[0-1]"),
        ("worker-0:1:2", "a name and a number", "for 1 slot on worker-0 alone"),
    ],
)
def test_wrong(include: str, seen: str, fix: str) -> None:
    """An unknown host or slot, and what can't be read, is refused with the right way to write it."""
    with pytest.raises(InputError) as caught:
        filter_nodes(NODES, include=include)
    (problem,) = caught.value.problems
    assert seen in problem.seen
    assert fix in problem.fix


def test_a_wrong_set_is_one_problem() -> None:
    """A node set with thousands of unknown names is one line to read."""
    with pytest.raises(InputError) as caught:
        filter_nodes(NODES, include="worker-[0-60000]:9")
    assert [problem.seen for problem in caught.value.problems] == [
        "no node is called 'worker-[3-60000]'",
        "worker-[0-2] has no slot 9",
    ]


def test_one_of_the_two() -> None:
    """Include and exclude exclude each other."""
    with pytest.raises(InputError, match="can't be used together"):
        filter_nodes(NODES, include="worker-0", exclude="worker-1")


def test_nothing_left() -> None:
    """Filters that leave nothing are refused, where DeepSpeed goes on to a traceback."""
    with pytest.raises(InputError, match="leaves no slots on worker-\\[0-2\\]"):
        filter_nodes(NODES, exclude="worker-[0-2]")


def test_unknown_slots() -> None:
    """Of a node with unknown slots, some can be picked; what is left after others is unknown, and refused."""
    one = (Node(name="localhost"),)
    assert left(one, include="localhost:0,1") == {"localhost": (0, 1)}
    with pytest.raises(InputError, match="are unknown"):
        filter_nodes(one, exclude="localhost:0")


def test_zero_slots() -> None:
    """A node with slots=0 stays until a filter looks at it, as in DeepSpeed."""
    nodes = (*NODES, Node(name="empty", slots=0))
    assert "empty" in left(nodes)
    assert "empty" not in left(nodes, exclude="worker-0")


def test_ipv6() -> None:
    """An address with colons of its own is picked as a whole, or with slots after its last colon."""
    nodes = (Node(name="fe80::1", slots=4), Node(name="fe80::2", slots=4))
    assert left(nodes, include="fe80::1@fe80::2:0") == {"fe80::1": None, "fe80::2": (0,)}


@given(
    st.text() | st.lists(st.sampled_from(["worker-0", "worker-[0-2]", "@", ":", ",", "0", "3", "[", " "])).map("".join)
)
def test_any_text(text: str) -> None:
    """No filter ends with anything but some of the nodes or an InputError."""
    for filters in ({"include": text}, {"exclude": text}):
        try:
            picked = filter_nodes(NODES, **filters)
        except InputError:
            continue
        assert {node.name for node in picked} <= {node.name for node in NODES}
