"""The section cluster.slurm: what it accepts, what it refuses, and where it may stand."""

from pathlib import Path

import pytest

from aboard.config.slurm_request import load_slurm_settings
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import InputError

EVERY_KEY = """\
cluster:
  slurm:
    nodes: 4
    partition: gpu,long
    gpus_per_node: 8
    account: llm
    time: 24:00:00
    qos: high
    constraint: a100&nvlink|[rack1*2]
    exclude: n[3,7-9]
    extra: [--exclusive, --mem=0]
    resubmit: {limit: 5}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_problems(*sources: str, sets: tuple[str, ...] = (), hostfile: str | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_slurm_settings(sources, sets=sets, hostfile=hostfile, allow_file=True)
    return [f"{problem}; {problem.fix}" for problem in caught.value.problems]


def test_every_key_is_read(folder: Path) -> None:
    """From ./aboard.yaml by default, as the nodes of a cluster are."""
    (folder / "aboard.yaml").write_text(EVERY_KEY)
    assert load_slurm_settings(allow_file=True) == SlurmSettings(
        nodes=4,
        partition="gpu,long",
        gpus_per_node=8,
        account="llm",
        time="24:00:00",
        qos="high",
        constraint="a100&nvlink|[rack1*2]",
        exclude="n[3,7-9]",
        extra=("--exclusive", "--mem=0"),
        resubmit_limit=5,
    )


def test_without_the_section_there_is_no_request(folder: Path) -> None:
    """A file with nodes, named nodes, or a broken file: other commands read those."""
    assert load_slurm_settings() is None
    (folder / "aboard.yaml").write_text("cluster: {nodes: n1}\n")
    assert load_slurm_settings() is None
    (folder / "aboard.yaml").write_text("cluster: [\n")
    assert load_slurm_settings() is None
    (folder / "aboard.yaml").write_text(EVERY_KEY)
    assert load_slurm_settings(["n1", "n2"]) is None


def test_an_override_can_be_the_whole_request() -> None:
    """--set works without a file, and minutes are a number."""
    settings = load_slurm_settings(sets=["cluster.slurm.nodes=2", "cluster.slurm.time=90"])
    assert settings == SlurmSettings(nodes=2, time="90")


def test_nodes_of_two_sources_are_refused(folder: Path) -> None:
    """Slurm chooses the nodes, or the user does."""
    (folder / "a.yaml").write_text("cluster:\n  nodes: n1\n  slurm: {nodes: 2}\n")
    (folder / "b.yaml").write_text("cluster:\n  slurm: {nodes: 2}\n")
    fix = "keep one of them; to use some of the nodes, add --include NODES"
    seen = "cluster: the nodes were specified twice, by {} and by cluster.slurm ({})"
    assert list_problems("a.yaml") == [f"{seen.format('cluster.nodes (a.yaml:2:10)', 'a.yaml:3:10')}; {fix}"]
    assert list_problems("b.yaml", "n1") == [f"{seen.format('the command line', 'b.yaml:2:10')}; {fix}"]
    assert list_problems("b.yaml", hostfile="h") == [f"{seen.format('--hostfile h', 'b.yaml:2:10')}; {fix}"]


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("nodes: 0", "cluster.slurm.nodes"),
        ("nodes: 2-4", 'cluster.slurm.nodes must be a whole number, not "2-4"'),
        ("partition: a b", "'a b' is not a value of an sbatch option"),
        ('account: "a\\n#SBATCH --uid=0"', "is not a value of an sbatch option"),
        ("qos: --x", "'--x' is not a value of an sbatch option"),
        ("time: tomorrow", "'tomorrow' is not a time limit of Slurm"),
        ("extra: [exclusive]", "'exclusive' is not an option of sbatch"),
        ("extra: [-N4]", "-N has a key of its own; remove it from extra, and write nodes: … in cluster.slurm"),
        ("extra: [--partition gpu]", "--partition has a key of its own"),
        ("extra: [--array=1-4]", "Aboard sets --array itself; remove --array from extra"),
        ('extra: ["--mem=0\\nrm -rf /"]', "is not a single line of text"),
    ],
)
def test_a_wrong_value_is_refused(folder: Path, line: str, seen: str) -> None:
    """With its place; nothing that could end an #SBATCH line or change what the script runs gets through."""
    nodes = "" if line.startswith("nodes") else "    nodes: 1\n"
    (folder / "aboard.yaml").write_text(f"cluster:\n  slurm:\n{nodes}    {line}\n")
    (problem,) = list_problems()
    assert seen in problem
    assert problem.startswith("aboard.yaml:")
