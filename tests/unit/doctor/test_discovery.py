"""What `aboard init` concludes from the replies of nodes."""

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.discovery import FabricNetwork
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.core.probes.multi_node_probe import Replies
from aboard.core.probes.probe import CommandOutput, FileContents
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.discovery import ask_addresses, build_nonce_probe, find_fabric, parse_mounts
from aboard.doctor.network.mesh_result import InterfaceAddress


def reach(*names: str) -> Facts:
    return Facts(
        cluster=Cluster(nodes=tuple(Node(name=name) for name in names)),
        contacts={
            name: ReachedNode(
                hostname=name, user="", address=f"10.77.0.{number}", python="", round_trip=0.0, clock_offset=0.0
            )
            for number, name in enumerate(names, start=1)
        },
    )


def cards(number: int, fabric: str = "eth1") -> tuple[InterfaceAddress, ...]:
    return (
        InterfaceAddress(interface="lo", address="127.0.0.1/8"),
        InterfaceAddress(interface="eth0", address=f"10.77.0.{number}/16"),
        InterfaceAddress(interface="docker0", address="172.17.0.1/16"),
        InterfaceAddress(interface=fabric, address=f"10.78.0.{number}/16"),
    )


def test_the_fabric_is_where_each_node_has_its_own_address() -> None:
    """The network of ssh and a container bridge are none."""
    facts = reach("n1", "n2")
    assert find_fabric({"n1": cards(1), "n2": cards(2)}, facts) == FabricNetwork(
        network="10.78.0.0/16", interface="eth1"
    )
    assert find_fabric({"n1": cards(1), "n2": cards(2)[:3]}, facts) is None
    assert find_fabric({"n1": cards(1)}, reach("n1")) is None


def test_only_an_interface_with_one_safe_name_is_suggested() -> None:
    """Names that differ, or that YAML would read as something else, are not written."""
    facts = reach("n1", "n2")
    for first, second in (("eth1", "ib0"), ("a: b", "a: b"), ("no", "no")):
        fabric = find_fabric({"n1": cards(1, first), "n2": cards(2, second)}, facts)
        assert fabric == FabricNetwork(network="10.78.0.0/16")


def test_a_hostile_list_of_addresses_is_dropped() -> None:
    """A prefix that no network has, or no list at all, costs only that node's addresses."""
    script = ask_addresses(reach("n1", "n2", "n3"))
    assert set(next(script)) == {"n1", "n2", "n3"}
    replies: Replies = {
        "n1": {"ports": [], "addresses": [["eth0", "10.77.0.1", 999], ["eth1", "10.78.0.1", 16]]},
        "n2": {"ports": [], "addresses": "eth0"},
        "n3": {"ports": [], "addresses": [["eth0\n# x", "10.77.0.3", 16]]},
    }
    with pytest.raises(StopIteration) as stop:
        script.send(replies)
    good = InterfaceAddress(interface="eth1", address="10.78.0.1/16")
    assert stop.value.value == {"n1": (good,), "n2": (), "n3": ()}


def test_network_file_systems() -> None:
    """Only those that other machines can have too."""
    text = "server:/x /data nfs4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\nbad\n"
    assert parse_mounts(FileContents(files={"/proc/self/mounts": text})) == {(Untrusted("/data"), Untrusted("nfs4"))}


def test_a_node_shares_the_directory_only_with_the_right_nonce() -> None:
    """A file of the same name with other content is another directory."""
    parse = build_nonce_probe("/x", "abc").parse
    assert parse(CommandOutput(code=0, stdout="abc\n"))
    assert not parse(CommandOutput(code=0, stdout="abd"))
    assert not parse(CommandOutput(code=1, stdout="abc"))
