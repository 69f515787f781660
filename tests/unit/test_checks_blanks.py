"""What a node says of itself stays one word of a command and one value of YAML, wherever a check puts it."""

import shlex

import pytest
import yaml

from aboard.checks.blanks import named, yaml_text, yaml_word
from aboard.checks.network.mesh import Try, read_address
from aboard.checks.network.words import DIAGNOSES
from aboard.checks.train.boarding import _step
from aboard.core.decoding import DecodeError, decode
from aboard.core.nodeset import fold_quoted
from aboard.core.size import size
from aboard.diagnoses import fabric, network
from aboard.diagnoses.untrusted import Untrusted

HOSTILE = ["x;curl evil|sh", "a'b", 'a", b: "c', "eth0, LD_PRELOAD: /tmp/x", "#", "$(id)", "a\nb", "-rf", "{}", "a: b"]


def test_nodes_behind_a_command_read_as_they_always_did() -> None:
    """Only names that need it are quoted."""
    assert fold_quoted(["n1", "n2", "n3"]) == "n[1-3]"
    assert named(["n1", "n2", "n3"]) == "n1, n2 and n3"
    assert shlex.split(fold_quoted(["a;b1", "a;b2"])) == ["a;b[1-2]"]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_of_yaml_stays_one(value: str) -> None:
    """No second key, no other type, no comment."""
    for written in (yaml_text(value), yaml_word(value)):
        line = network.INTERFACE_MISSING.fix(variable="GLOO_SOCKET_IFNAME", interface=written, node="n1")
        assert list(yaml.safe_load(line)["env"]) == ["GLOO_SOCKET_IFNAME"]
        assert isinstance(yaml.safe_load(line)["env"]["GLOO_SOCKET_IFNAME"], str)
    assert len(yaml.safe_load(fabric.MIXED.fix("exclude", adapters=yaml_text(f"^={value}"), where="n1"))) == 1


def test_an_address_is_an_address() -> None:
    """A scope may hold anything for Python; here it would reach /etc/hosts and a script of sed."""
    assert [read_address(each) for each in ("fe80::1%eth0", "10.0.0.1")] == ["fe80::1%eth0", "10.0.0.1"]
    assert decode(Try, ["dropped", 1.0, "", "10.0.0.3", "x"], strict=True).remote == "10.0.0.3"
    for bad in ("10.0.0.3 pypi.org", "fe80::1%e 10.0.0.9 pypi.org", "fe80::1%/;e id", "$(id)"):
        with pytest.raises(DecodeError, match="no address"):
            read_address(bad)
        with pytest.raises(DecodeError, match="remote"):
            decode(Try, ["ok", 0.1, "10.0.0.1", bad, ""], strict=True)
    with pytest.raises(DecodeError, match="outcome"):
        decode(Try, ["evil", 0.1, "", "", ""])


def test_each_way_to_fail_to_connect_has_its_steps() -> None:
    """Whatever the shape, the steps are there for it."""
    for (_scope, outcome), diagnosis in DIAGNOSES.items():
        if outcome != "stalled":
            for way in ("in", "out"):
                fix = diagnosis.fix(way, net="10.0.0.0/24", ports="29500", where=fold_quoted(["n1"]))
                assert "10.0.0.0/24 --dport 29500 -j ACCEPT    # on n1; until it boots again\n# for good: " in fix
            assert diagnosis.fix("look", where=fold_quoted(["n1"])).endswith("    # on n1; who says no?")
            assert diagnosis.fix("route", address="$(id)", node="n1").startswith("ip route get '$(id)' ")


@pytest.mark.parametrize(
    "line",
    [
        "--set train.sharding=full",
        f"--set train.sharding=full   # then {size(12 << 30)} per rank",
        f"--set train.gradient_checkpointing=true --set train.max_length=512   # then {size(3 << 40)} per rank",
        f"--set train.sharding=full   # and 4 such nodes; then {size(700 << 20)} per rank",
        f"# and 2 such nodes; then {size(1)} per rank",
    ],
)
def test_the_trainers_advice_is_read_and_written_anew(line: str) -> None:
    """It comes from a process that loaded a model."""
    assert _step(Untrusted(line)) == line


@pytest.mark.parametrize(
    "line", ["curl evil | sh", "--set train.x=$(id)", "--set train.x=1; id", "--set train.x=1   # then\nid", "# x"]
)
def test_other_advice_is_left_out(line: str) -> None:
    """Nothing that it doesn't say becomes a command."""
    assert _step(Untrusted(line)) is None
