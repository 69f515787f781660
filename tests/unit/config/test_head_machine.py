"""The head among the nodes."""

import socket

import pytest

from aboard.config.this_machine import find_source_addresses, inspect_this_machine
from aboard.core.cluster.head_machine import (
    HeadMachine,
    assign_head_address,
    find_reachable_address,
    is_head_node,
    is_loopback,
)
from aboard.core.cluster.node import Node, TransportKind
from aboard.diagnoses import InputError

HERE = HeadMachine(
    names=frozenset({"gpu01", "gpu01.lan"}), addresses=("10.0.0.1", "127.0.1.1", "fd00::1"), user="alice"
)


@pytest.mark.parametrize(
    "node",
    [
        Node(name="localhost"),
        Node(name="127.0.0.1"),
        Node(name="127.0.1.1"),
        Node(name="::1"),
        Node(name="gpu01"),
        Node(name="GPU01.lan"),
        Node(name="10.0.0.1"),
        Node(name="fd00:0::1"),
        Node(name="first", address="10.0.0.1"),
        Node(name="gpu01", user="alice"),
    ],
)
def test_is_here(node: Node) -> None:
    """The head's own names and addresses, however written, mean this machine."""
    assert is_head_node(node, HERE)


@pytest.mark.parametrize(
    "node",
    [
        Node(name="gpu02"),
        Node(name="10.0.0.2"),
        Node(name="gpu01", address="10.0.0.2"),
        Node(name="localhost", port=2222),
        Node(name="gpu01", user="root"),
    ],
)
def test_is_elsewhere(node: Node) -> None:
    """Another address, a port of its own or another user is a matter for ssh."""
    assert not is_head_node(node, HERE)


def test_localhost_alone() -> None:
    """Alone, localhost is this machine and needs no address."""
    node = Node(name="localhost", transport=TransportKind.LOCAL)
    assert assign_head_address([node], HERE, []) == (node,)


def test_localhost_beside_others() -> None:
    """Beside others, localhost gets the address that most of its peers would see, and keeps its name."""
    nodes = [Node(name="n1"), Node(name="localhost", transport=TransportKind.LOCAL)]
    _, head = assign_head_address(nodes, HERE, ["127.0.0.1", "10.9.0.1", "10.0.0.1", "10.9.0.1"])
    assert (head.name, head.address, head.transport) == ("localhost", "10.9.0.1", TransportKind.LOCAL)


def test_own_name_stays() -> None:
    """The head's own name is what peers can look up, so it is left alone."""
    nodes = (Node(name="gpu01", transport=TransportKind.LOCAL), Node(name="n1"))
    assert assign_head_address(nodes, HERE, []) == nodes


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (("127.0.1.1", "fe80::1", "169.254.0.1", "10.0.0.1"), "10.0.0.1"),
        (("127.0.1.1", "::1"), None),
        ((), None),
    ],
)
def test_never_a_loopback(addresses: tuple[str, ...], expected: str | None) -> None:
    """127.0.1.1, which Debian gives to a machine's own name, is nothing to hand to peers; nor is a link-local one."""
    here = HeadMachine(names=frozenset(), addresses=addresses, user="alice")
    assert find_reachable_address(here, ["127.0.1.1"]) == expected


def test_no_address() -> None:
    """A head that no peer could reach is an error, not a guess."""
    here = HeadMachine(names=frozenset(), addresses=("127.0.0.1",), user="alice")
    with pytest.raises(InputError, match="no address that they can reach"):
        assign_head_address([Node(name="localhost", transport=TransportKind.LOCAL), Node(name="n1")], here, [])


def test_twice() -> None:
    """The head under two names would get its ranks twice."""
    with pytest.raises(InputError, match="localhost and gpu01 are both this machine"):
        assign_head_address(
            [Node(name="localhost", transport=TransportKind.LOCAL), Node(name="gpu01", transport=TransportKind.LOCAL)],
            HERE,
            [],
        )


def test_looking_around() -> None:
    """The real machine knows its own name and loopback address, and calls itself by no loopback name."""
    here = inspect_this_machine()
    assert socket.gethostname().lower() in here.names or is_loopback(socket.gethostname())
    assert "127.0.0.1" in here.addresses
    assert not any(is_loopback(name) for name in here.names if name.startswith("localhost"))
    assert here.user


def test_sources() -> None:
    """The way to a loopback peer starts at the loopback address; a name that isn't one has no way."""
    assert find_source_addresses(["127.0.0.1"]) == ("127.0.0.1",)
    assert find_source_addresses(["x" * 70]) == ()
