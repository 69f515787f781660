"""`aboard init`: what it writes is what the loader reads."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aboard.cli.init import init
from aboard.config.cluster_loader import load_cluster
from aboard.core.cluster.cluster import PlannedWrites
from aboard.core.cluster.head_machine import HeadMachine
from aboard.diagnoses import InputError

GOLDEN = Path(__file__).parent / "golden"
HERE = HeadMachine(names=frozenset(), addresses=(), user="alice")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(init, args)


def refused(*args: str) -> tuple[str, str]:
    error = run(*args).exception
    assert isinstance(error, InputError)
    return str(error.problems[0]), error.fix


def test_golden(files: Path) -> None:
    """The file is small and commented, and the loader reads the same nodes from it."""
    assert run("gpu[01-16,20]", "bob@big,other[1-2]").output == "Wrote aboard.yaml. Next: aboard check\n"
    assert (files / "aboard.yaml").read_text() == (GOLDEN / "init.yaml").read_text()
    assert load_cluster(here=HERE).nodes == load_cluster(["gpu[01-16,20]", "bob@big,other[1-2]"], here=HERE).nodes


def test_comments_can_be_uncovered(files: Path) -> None:
    """Every key in a comment is right as it stands."""
    run("n[1-2]")
    text = (files / "aboard.yaml").read_text()
    (files / "aboard.yaml").write_text(re.sub(r"^( *)# (?=\w+: )", r"\1", text, flags=re.MULTILINE))
    cluster = load_cluster(here=HERE)
    node = cluster.nodes[0]
    assert cluster.writes == PlannedWrites(path="/data/out", size=200 * 10**9)
    assert (node.user, node.slots, node.fabric_address, len(node.setup)) == ("alice", 8, "n1i", 2)


def test_from_a_hostfile(files: Path) -> None:
    """A hostfile's nodes are folded, and keep their slots."""
    (files / "hosts").write_text("n1 slots=8\nn2 slots=8\nn3 slots=4\nn4 slots=0\n")
    run("--hostfile", "hosts", "-o", "b.yaml")
    text = (files / "b.yaml").read_text()
    assert re.findall(r"- (.*)", text) == ['"n[1-2] slots=8"', '"n3 slots=4"', '"n4 slots=0"']
    assert "# slots" not in text
    assert [node.slots for node in load_cluster(["b.yaml"], here=HERE)] == [8, 8, 4, 0]


def test_nothing_is_overwritten(files: Path) -> None:
    """A file that is there stays, and the message says what to type."""
    (files / "aboard.yaml").write_text("mine")
    seen, fix = refused("n1")
    assert seen == "aboard.yaml: the file already exists"
    assert "-o aboard-2.yaml" in fix
    assert (files / "aboard.yaml").read_text() == "mine"


def test_no_nodes() -> None:
    """Without nodes there is nothing to write."""
    assert "no node was given" in refused()[0]
    assert "both as arguments and by --hostfile" in refused("n1", "--hostfile", "h")[0]
    assert "cannot write the file" in refused("n1", "-o", "no/such/dir.yaml")[0]


def test_schema() -> None:
    """--schema prints the schema and writes nothing."""
    assert run("--schema").output == (GOLDEN / "schema.json").read_text()
    assert not Path("aboard.yaml").exists()
