"""Faults as values, as text and as commands; nothing is broken here."""

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aboard.commands.sandbox.command import sandbox
from aboard.diagnoses import SandboxError
from aboard.sandbox.faults import FAULTS, Fault, find_fault_class
from aboard.sandbox.faults.file_edits import revert_lines
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject, _parse_port_ranges
from aboard.sandbox.faults.network.links import LinkRateLimit
from aboard.sandbox.faults.network.nftables import format_filter_chains

CLI = CliRunner()
README = Path(__file__).parents[4] / "README.md"


def test_names_are_unique() -> None:
    """A name means one fault."""
    assert len({kind.name for kind in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_command_of_each_fault(kind: type[Fault]) -> None:
    """Each fault is a command whose help is its sentence and whose options say what they are for."""
    shown = CLI.invoke(sandbox, ["break", kind.name, "--help"], terminal_width=300).output
    assert kind.__doc__ is not None
    assert kind.__doc__ in shown
    assert kind.__doc__.endswith(".")
    assert all(f"--{item.name.replace('_', '-')} " in shown for item in fields(kind))


def test_list() -> None:
    """`break --list` shows every fault with its sentence, and needs neither root nor a sandbox."""
    done = CLI.invoke(sandbox, ["break", "--list"])
    assert done.exit_code == 0
    assert all(f"{kind.name} " in done.output and str(kind.__doc__) in done.output for kind in FAULTS)


def test_the_readme_counts_the_faults() -> None:
    """The number that README.md gives is that of the catalogue."""
    said = re.search(r"all ([0-9]+) faults", README.read_text("utf-8"))
    assert said is not None
    assert int(said[1]) == len(FAULTS)


def test_unknown_fault() -> None:
    """A misspelt fault is answered with the one that was meant."""
    with pytest.raises(SandboxError, match="did you mean 'drop'") as caught:
        find_fault_class("dorp")
    assert caught.value.fix == "aboard sandbox break --list"
    assert isinstance(CLI.invoke(sandbox, ["break", "dorp", "--node", "n1"]).exception, SandboxError)


def test_required_option() -> None:
    """A fault that can't guess says which option is missing."""
    assert "'--peer'" in CLI.invoke(sandbox, ["break", "unresolved", "--node", "n1"]).output
    assert "'--node'" in CLI.invoke(sandbox, ["break", "drop"]).output


def test_values() -> None:
    """Equal faults have one key, others another, and none can be changed."""
    assert FirewallDrop(ports="22").key == FirewallDrop(ports="22").key != FirewallDrop(ports="23").key
    with pytest.raises(FrozenInstanceError):
        FirewallDrop().ports = "22"  # type: ignore[misc]


def test_describe() -> None:
    """A fault describes itself as it would be typed, without its defaults."""
    assert (
        FirewallDrop(ports="29500", way="both", open_too=True).describe() == "drop --ports 29500 --way both --open-too"
    )
    assert LinkRateLimit(mbit=50).describe() == "rate --mbit 50"


def test_claims() -> None:
    """Two rates of one direction clash, two directions and two firewalls don't."""
    assert LinkRateLimit(mbit=1, way="in").claims & LinkRateLimit(mbit=2, way="both").claims
    assert not LinkRateLimit(mbit=1, way="in").claims & LinkRateLimit(mbit=1, way="out").claims
    assert not FirewallDrop().claims & FirewallReject().claims


def test_rules() -> None:
    """A rule stands once per direction, with the cards that it is for."""
    assert format_filter_chains("both", "drop", network="fabric") == (
        "  chain input {\n"
        "    type filter hook input priority 0;\n"
        '    iifname "eth1" drop\n'
        "  }\n"
        "  chain output {\n"
        "    type filter hook output priority 0;\n"
        '    oifname "eth1" drop\n'
        "  }\n"
    )


def test_firewall_rules() -> None:
    """Where an administrator's stand, for first packets only, and as many as the ports need."""
    nowhere: Any = None
    (rule,) = FirewallReject(ports="22,80-90", network="fabric").rules(nowhere)
    wanted = "INPUT -i eth1 -p tcp -m multiport --dports 22,80:90 -m tcp --syn -j REJECT --reject-with tcp-reset"
    assert " ".join(rule) == wanted
    assert list(FirewallDrop(way="both").rules(nowhere)) == [
        ("INPUT", "-i", "eth+", "-j", "DROP"),
        ("OUTPUT", "-o", "eth+", "-j", "DROP"),
    ]
    assert len(list(FirewallDrop(ports=",".join(map(str, range(1, 16)))).rules(nowhere))) == 3


@pytest.mark.parametrize(
    ("ports", "ranges"), [("22", ["22"]), ("1024-65535, 80", ["1024-65535", "80"]), ("7-7", ["7"])]
)
def test_ports(ports: str, ranges: list[str]) -> None:
    """Ports are numbers and ranges, with commas between them."""
    assert _parse_port_ranges(ports) == ranges


@pytest.mark.parametrize("ports", ["", "ssh", "0", "65536", "9-1", "22;drop", "22,"])
def test_no_ports(ports: str) -> None:
    """What is no port is refused: nothing but numbers reaches the rules."""
    with pytest.raises(SandboxError, match="not a port"):
        _parse_port_ranges(ports)


def test_lines_come_back_whole() -> None:
    """A file that nobody else touched is byte for byte what it was."""
    assert revert_lines("x\na\n\n", before="a\n\nb", after="x\na\n\n", added=["x"], dropped=["b"]) == "a\n\nb"


def test_lines_of_others_stay() -> None:
    """What others wrote meanwhile stays, and what they put back isn't put back twice."""
    now = "theirs\nx\nb\n"
    assert revert_lines(now, before="a\nb\n", after="x\na\n", added=["x"], dropped=["b"]) == "theirs\nb\n"
