"""DeepSpeed's hostfile, and node sets in it."""

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from aboard.core.cluster.hostfile import parse_hostfile
from aboard.diagnoses import InputError


def slots(text: str) -> dict[str, int | None]:
    return {node.name: node.slots for node in parse_hostfile(text)}


def test_as_deepspeed_reads_it() -> None:
    """Comments, blank lines, indentation, tabs, CRLF and what follows the slots are read as DeepSpeed does."""
    text = "# rack 3\n\n  worker-0 slots=8\r\nworker-1\tslots=4 # new\n10.0.0.9 slots=2 max_slots=4\n #\nw slots=08\r"
    assert slots(text) == {"worker-0": 8, "worker-1": 4, "10.0.0.9": 2, "w": 8}


@pytest.mark.parametrize(("line", "count"), [("w slots=8x", 8), ("w slots=0", 0), ("w slots=8.5", 8), ("w slots=٣", 3)])
def test_odd_slots(line: str, count: int) -> None:
    """Only the digits right after `slots=` count, zero among them."""
    assert slots(line) == {"w": count}


def test_node_sets() -> None:
    """A node set in the host column is a line for each of its nodes, in order; a user goes with each."""
    nodes = parse_hostfile("alice@gpu[01-02,20] slots=8\na,b slots=4\n")
    assert [(node.name, node.user, node.slots) for node in nodes] == [
        ("gpu01", "alice", 8),
        ("gpu02", "alice", 8),
        ("gpu20", "alice", 8),
        ("a", None, 4),
        ("b", None, 4),
    ]


@pytest.mark.parametrize(
    ("line", "seen", "fix"),
    [
        ("worker-0", "has no slots=N", "write: worker-0 slots=8"),
        ("worker-0 slots = 4", "can't read 'worker-0 slots = 4'", "write: worker-0 slots=4"),
        ("worker-0 slot=4", "can't read", "write: worker-0 slots=4"),
        ("this is bad slots=1", "can't read", "write: this slots=1"),
        ("gpu[01-16, 20] slots=8", "can't read", "write: gpu[01-16,20] slots=8"),
        ("gpu[16-01] slots=8", "runs backwards", "write 01-16"),
        ("-oProxyCommand=id slots=8", "starts with '-'", "check the spelling"),
        ("$(id) slots=8", "not a hostname", "check the spelling"),
        ("w slots=99999999999", "65,536 is the maximum", "write: w slots=8"),
    ],
)
def test_wrong_lines(line: str, seen: str, fix: str) -> None:
    """A wrong line is named with its number, and the right line is shown."""
    with pytest.raises(InputError) as caught:
        parse_hostfile(f"# comment\n{line}\n", where="my/hostfile")
    (problem,) = caught.value.problems
    assert problem.where == "my/hostfile:2"
    assert seen in problem.seen
    assert fix in problem.fix


def test_twice() -> None:
    """A host on two lines is an error that names both, also when one of them is a node set."""
    with pytest.raises(InputError) as caught:
        parse_hostfile("n[1-3] slots=8\n\nn2 slots=4\n")
    assert str(caught.value.problems[0]) == "hostfile:3: n2 is already on line 1"
    with pytest.raises(InputError, match="n2 is already on line 1"):
        parse_hostfile("n[1-3],n2 slots=8\n")


@pytest.mark.ci
def test_too_many() -> None:
    """Lines that stand for more hosts than there can be are stopped before they fill the memory."""
    with pytest.raises(InputError, match="hostfile:2: the hostfile lists more than 65,536 hosts"):
        parse_hostfile("".join(f"{letter}[1-40000] slots=8\n" for letter in "abcdefgh"))


@pytest.mark.parametrize("text", ["", "\n \n", "# only a comment\n"])
def test_empty(text: str) -> None:
    """A file without hosts is an error, as in DeepSpeed."""
    with pytest.raises(InputError, match="lists no hosts"):
        parse_hostfile(text)


def test_all_at_once() -> None:
    """Every wrong line is reported, not the first only."""
    with pytest.raises(InputError) as caught:
        parse_hostfile("a\nb slots=8\nc slots\nd[ slots=1\nb slots=8\n")
    assert [problem.where for problem in caught.value.problems] == [f"hostfile:{line}" for line in (1, 3, 4, 5)]


@given(
    st.text() | st.lists(st.sampled_from(["w0", "n[1-2]", " ", "slots=", "8", "#", "\n", "\r", "\0", "["])).map("".join)
)
def test_any_text(text: str) -> None:
    """No text ends the parser with anything but nodes or an InputError."""
    with suppress(InputError):
        assert parse_hostfile(text)
