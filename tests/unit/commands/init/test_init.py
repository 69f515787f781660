"""`aboard init`: what it writes is what the loader reads."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from aboard.commands.init.command import InitSummary, init
from aboard.commands.init.write_config import discover_cluster
from aboard.config.cluster_loader import load_cluster
from aboard.config.known_nodes import FoundNodes, find_nodes, list_ssh_hosts
from aboard.config.node_entries import parse_hostfile_entries, parse_node_names
from aboard.config.starter_file import format_starter_file
from aboard.core.cluster.cluster import PlannedWrites
from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.discovery import DiscoveredCluster, DiscoveredNode, FabricNetwork, choose_next_step
from aboard.core.cluster.head_machine import HeadMachine
from aboard.diagnoses import AboardError, InputError
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.local import LocalTransport

GOLDEN = Path(__file__).parents[2] / "golden"
HERE = HeadMachine(names=frozenset(), addresses=(), user="alice")
PYTHON = "/opt/venv/bin/python ($VIRTUAL_ENV), Python 3.11.7, torch 2.7.1"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, and no ssh: no test contacts a machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "")
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(init, args)


def refused(*args: str) -> tuple[str, str]:
    error = run(*args).exception
    assert isinstance(error, InputError)
    return str(error.problems[0]), error.fix


def reached(name: str, **facts: Any) -> DiscoveredNode:
    return DiscoveredNode(**{"name": name, "gpus": (), "interpreter": PYTHON, "shares_workdir": True, **facts})


def unreached(name: str, reason: UnreachableReason) -> DiscoveredNode:
    return DiscoveredNode(name=name, problem=UnreachedNode(reason=reason, said="…"))


def found(*nodes: DiscoveredNode, **facts: Any) -> DiscoveredCluster:
    return DiscoveredCluster(source="hostfile", workdir="/home/alice/project", nodes=nodes, **facts)


MIXED = found(
    reached("gpu01", gpus=("H100",) * 8, shares_workdir=False),
    reached("gpu02", gpus=("H100",) * 8, shares_workdir=False),
    reached("gpu03", gpus=None, interpreter="python3 (login shell)", lacking="/opt/venv/bin/python"),
    reached("big"),
    unreached("other1", UnreachableReason.KEY_REFUSED),
    unreached("other2", UnreachableReason.KEY_REFUSED),
    fabric=FabricNetwork(network="10.78.0.0/16", interface="eth1"),
    mounts=("/data (nfs4)",),
)
NAMES = ["gpu[01-03]", "bob@big", "other[1-2]"]


def test_golden(files: Path) -> None:
    """The file is small and commented, and the loader reads the same nodes from it."""
    text = format_starter_file(parse_node_names(NAMES), MIXED)
    assert text == (GOLDEN / "init.yaml").read_text()
    (files / "aboard.yaml").write_text(text)
    nodes = load_cluster(here=HERE, allow_file=True).nodes
    assert [(node.name, node.user, node.slots) for node in nodes][1:4] == [
        ("gpu02", None, 8),
        ("gpu03", None, None),
        ("big", "bob", None),
    ]


def test_summary_in_80_columns() -> None:
    """Nodes that are alike share a row, and the last line is the command to type."""
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(InitSummary(MIXED, output="aboard.yaml", default=True), crop=False)
    assert capture.get() == (GOLDEN / "init.txt").read_text()
    assert list(InitSummary(MIXED, output="b c.yaml", default=False).lines())[-1] == (
        "Next: aboard trust 'b c.yaml'    # lets you log in to other[1-2]"
    )


def test_comments_can_be_uncovered(files: Path) -> None:
    """Every key in a comment is right as it stands, the found network's too."""
    text = format_starter_file(parse_node_names(NAMES), MIXED)
    (files / "aboard.yaml").write_text(re.sub(r"^( *)# (?=\w+: )", r"\1", text, flags=re.MULTILINE))
    cluster = load_cluster(here=HERE, allow_file=True)
    node = cluster.nodes[2]
    assert cluster.writes == PlannedWrites(path="/data/out", size=200 * 10**9)
    assert (node.user, node.slots, node.fabric_address, len(node.setup)) == ("alice", 8, "gpu03i", 2)
    assert node.env == {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}


def test_from_a_hostfile(files: Path) -> None:
    """A hostfile's nodes are folded, and keep their slots, even if they have GPUs."""
    text = "n1 slots=8\nn2 slots=8\nn3 slots=4\nn4 slots=0\n"
    nodes = [reached(f"n{number}", gpus=("H100",) * 2) for number in range(1, 5)]
    (files / "b.yaml").write_text(format_starter_file(parse_hostfile_entries(text, "hosts"), found(*nodes)))
    assert "# slots" not in (files / "b.yaml").read_text()
    assert [node.slots for node in load_cluster(["b.yaml"], here=HERE)] == [8, 8, 4, 0]


@pytest.mark.parametrize(
    ("nodes", "command"),
    [
        ([reached("a"), unreached("b", UnreachableReason.REFUSED)], "check"),
        ([unreached("a", UnreachableReason.REFUSED), unreached("b", UnreachableReason.HOST_KEY_UNKNOWN)], "trust"),
        ([reached("a"), reached("b", lacking="/opt/venv/bin/python", shares_workdir=False)], "sync --env"),
        ([reached("a"), reached("b", shares_workdir=False)], "sync"),
        ([reached("a"), reached("b")], "check"),
    ],
)
def test_the_next_command(nodes: list[DiscoveredNode], command: str) -> None:
    """First logins, then what nodes lack, then the check."""
    assert choose_next_step(found(*nodes)).command == command


def test_the_next_command_is_no_sync_of_the_home() -> None:
    """`aboard sync` would refuse it; the summary says where to start instead."""
    home = found(reached("a"), reached("b", shares_workdir=False), at_home=True)
    assert choose_next_step(home).command == "check"
    lines = list(InitSummary(home, output="aboard.yaml", default=True).lines())
    assert any("is not shared with b; Aboard never sends it to nodes" in line for line in lines)


def test_an_unreached_node_is_written_too(files: Path) -> None:
    """Without any contact the file has the nodes, and says where they came from and what comes next."""
    done = run("n[1-2]", "--yes")
    assert done.output.splitlines() == [
        "Nodes from the command line: n[1-2]",
        "n[1-2]: not reached: no ssh",
        "Wrote aboard.yaml with 2 nodes.",
        "Next: aboard check    # explains why n[1-2] can't be reached",
    ]
    assert [node.name for node in load_cluster(here=HERE)] == ["n1", "n2"]
    assert [path.name for path in files.iterdir()] == ["aboard.yaml"]


def test_nodes_are_asked_what_they_have(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real agent sees the directory of the head, and the interpreter that ranks will use."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    nodes = FoundNodes(entries=tuple(parse_node_names(["a", "b"])), source="hostfile")
    seen = asyncio.run(discover_cluster(nodes, here=HERE, environ={}, transport_for=lambda _node: LocalTransport()))
    assert [node.problem for node in seen.nodes] == [None, None]
    assert not seen.private
    assert all("Python 3." in node.interpreter for node in seen.nodes)
    assert not list(files.iterdir())


def test_nothing_is_overwritten(files: Path) -> None:
    """A file that is there stays, and the message says what to type."""
    (files / "aboard.yaml").write_text("mine")
    seen, fix = refused("n1")
    assert seen == "aboard.yaml: the file already exists"
    assert "-o aboard-2.yaml" in fix
    assert (files / "aboard.yaml").read_text() == "mine"


def test_nodes_are_added_to_a_file_without_any(files: Path) -> None:
    """A file with other settings keeps every byte and gets a `cluster` section; the same again changes nothing."""
    settings = "train:\n  model: ./model  # mine"
    (files / "aboard.yaml").write_text(settings)
    assert "Added 2 nodes to aboard.yaml." in run("n[1-2]").output
    text = (files / "aboard.yaml").read_text()
    assert text.startswith(settings + "\n")
    assert [node.name for node in load_cluster(here=HERE)] == ["n1", "n2"]
    assert "aboard.yaml already lists these nodes." in run("n[1-2]").output
    assert (files / "aboard.yaml").read_text() == text
    assert refused("n[1-3]")[0] == "aboard.yaml: the file already exists"


def test_no_nodes() -> None:
    """Without nodes there is nothing to write."""
    assert "no node was given, and there is no /job/hostfile" in refused()[0]
    assert "both as arguments and by --hostfile" in refused("n1", "--hostfile", "h")[0]
    assert "cannot write the file" in refused("n1", "-o", "no/such/dir.yaml")[0]


def test_the_first_place_with_nodes_counts(files: Path) -> None:
    """./hostfile comes before ~/hostfile, and that before ~/.ssh/config; only the last needs consent."""
    home = files / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").write_text("Host s1\n")
    assert find_nodes([], None, home=home).guessed
    (home / "hostfile").write_text("h1 slots=1\n")
    assert find_nodes([], None, home=home).source == "~/hostfile"
    (files / "hostfile").write_text("w1 slots=1\n")
    assert find_nodes([], None, home=home).source == "hostfile"
    assert find_nodes(["n1"], None, home=home).source == "the command line"


def test_hosts_of_ssh_config(files: Path) -> None:
    """Patterns, git servers, jump hosts and names that ssh would take for options are left out."""
    (files / "config.d").mkdir()
    (files / "config.d/a").write_text("Host inc1\n")
    (files / "config").write_text(
        'Include config.d/* no/such ~nobody-here/x ""\n'
        "# Host no\nHost *.example !x n?\n  User me\nHost=n1 'n2' -oProxyCommand=x\n"
        " ProxyJump me@jump:22,none\nMatch host y\nHost jump\nHost forge\n  HostName github.com\nHost git\n User git\n"
        'Host "a b\nhost N3 n1\n'
    )
    assert list_ssh_hosts(files) == ["inc1", "n1", "n2", "b", "N3"]
    assert list_ssh_hosts(files / "none") == []


def test_guessed_nodes_need_consent(files: Path) -> None:
    """Without a terminal nobody can be asked, so the message has the command; --yes takes them."""
    (files / "home/.ssh").mkdir(parents=True)
    (files / "home/.ssh/config").write_text("Host n1 n2\n")
    error = run().exception
    assert isinstance(error, AboardError)
    assert (error.code, error.fix) == ("init-ask", "aboard init --yes")
    assert not (files / "aboard.yaml").exists()
    assert "Nodes from ~/.ssh/config: n[1-2]" in run("--yes").output


def test_schema() -> None:
    """--schema prints the schema and writes nothing; pydantic before 2.10 repeats a constant as an enumeration."""

    def drop_enumeration(node: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in node.items() if name != "enum" or "const" not in node}

    printed = json.loads(run("--schema").output, object_hook=drop_enumeration)
    assert printed == json.loads((GOLDEN / "schema.json").read_text())
    assert not Path("aboard.yaml").exists()
