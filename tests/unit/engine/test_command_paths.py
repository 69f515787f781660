"""Paths in the ranks' command are compared before ranks start, and what is below the home is below each node's home."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aboard.agent.inspect.launch_environment import describe_environment
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.launch_request import LaunchRequest, resolve_request
from aboard.core.plan.program import build_rank_program
from aboard.core.probes.facts import Facts
from aboard.core.probes.rank_environment import RankSpec, build_environment_query, move_workdir, parse_environment
from aboard.diagnoses import Finding, Severity
from aboard.doctor.software.interpreter_and_program import find_missing_paths
from aboard.engine.launch_run import ACCELERATE_CONFIG, build_rank_spec
from aboard.engine.request.launch_spec import LaunchSpec


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's home with a project in it, whose names a shell would stumble over."""
    project = tmp_path / "head/project"
    for name in ("train.py", "ds.json", "data/a b.jsonl", "2", "out/log"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "head"))
    monkeypatch.chdir(project)
    return project


def specify(words: str | list[str], **env: str) -> RankSpec:
    program = build_rank_program(words.split() if isinstance(words, str) else words)
    request = LaunchRequest(program=program, env=env)
    return build_rank_spec(LaunchSpec(cluster=Cluster(nodes=()), request=request, cwd=str(Path.cwd())))


def check(spec: RankSpec, here: Path, **node: Any) -> list[Finding]:
    """What is found on two nodes that answer from this machine's disk; n2's `workdir` may be elsewhere."""
    environments = {}
    nodes = []
    for name, workdir in (("n1", here), ("n2", node.pop("workdir", here))):
        each = Node(name=name, workdir=str(workdir), **node)
        reply = describe_environment(build_environment_query(each, spec))
        environments[name] = parse_environment(each, spec, reply)
        nodes.append(move_workdir(each, environments[name].folder))
    return list(
        find_missing_paths(
            Facts(cluster=Cluster(nodes=tuple(nodes)), contacts={}, answers={}, environments=environments)
        )
    )


def test_a_path_that_only_this_machine_has_is_a_warning_and_a_configuration_blocks(head: Path, tmp_path: Path) -> None:
    """Words that are paths here and not there are named; numbers, options and words that are no paths are not."""
    node = tmp_path / "node"
    (node / "out").mkdir(parents=True)
    words = [
        "train.py",
        "--data=data/a b.jsonl",
        "--epochs",
        "2",
        "--output_dir",
        "out",
        "--deepspeed",
        "ds.json",
        "bf16",
    ]
    spec = specify(words)
    assert [each.path for each in spec.paths] == ["data/a b.jsonl", "out", "ds.json"]
    assert check(spec, head) == []
    warned, blocked = check(spec, head, workdir=node)
    assert (warned.severity, blocked.severity) == (Severity.WARN, Severity.BLOCK)
    assert warned.nodes == blocked.nodes == ("n2",)
    assert warned.seen == "data/a b.jsonl exists on this machine, but not on n2"
    assert "ds.json" in blocked.seen
    # A sync would not bring them where ranks look for them.
    assert warned.fix.startswith("copy data/a b.jsonl to the working directory on n2")


def test_the_fix_sends_the_path_even_if_gitignore_names_it(head: Path) -> None:
    """Where a sync puts it where ranks look for it; quoted, and for the nodes that lack it."""
    spec = specify(["train.py", "data/a b.jsonl"])
    both = [replace(path, path="gone here") for path in spec.paths]
    lacking = replace(spec, paths=tuple(replace(path, source=str(head / "gone here")) for path in both))
    (finding,) = check(lacking, head)
    assert finding.fix == "aboard sync --ignored 'gone here' --on 'n[1-2]'"


def test_the_file_that_accelerate_names_blocks(head: Path, tmp_path: Path) -> None:
    """It is no argument, but a variable of every rank."""
    (tmp_path / "node").mkdir()
    (finding,) = check(specify("train.py", **{ACCELERATE_CONFIG: "ds.json"}), head, workdir=tmp_path / "node")
    assert finding.severity is Severity.BLOCK


def test_of_a_container_only_what_is_outside_is_asked(head: Path) -> None:
    """A path of the image is nothing that the agent can see, and setup lines may change the directory."""
    spec = specify(["train.py", str(head / "ds.json"), "out"])
    container = Container(runtime="apptainer", image="x.sif")
    assert build_environment_query(Node(name="n1", workdir=str(head), container=container), spec)["paths"] == ["out"]
    assert "paths" not in build_environment_query(Node(name="n1", workdir=str(head), setup=("cd x",)), spec)


def test_ranks_start_where_a_sync_put_the_project(head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home directories differ: ranks start in the node's own, and an image in it is there, too."""
    spec = specify("train.py out")
    container = Container(runtime="apptainer", image="x.sif")
    cluster, _ = resolve_request(
        Cluster(nodes=(Node(name="n1"), Node(name="n2", container=container))),
        LaunchRequest(program=build_rank_program(["train.py"])),
        str(head),
    )
    own = tmp_path / "alice/project"
    own.mkdir(parents=True)
    (own / "train.py").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    for node in cluster:
        told = parse_environment(node, spec, describe_environment(build_environment_query(node, spec)))
        moved = move_workdir(node, told.folder)
        assert (moved.workdir, told.workdir) == (str(own), True)
        assert told.program is not None
        assert (told.program.path, told.program.exists) == (str(own / "train.py"), True)
        assert [path.path for path in told.missing] == ["out"]
        assert moved.container is None or moved.container.image == f"{own}/x.sif"
    # A directory of the configuration, and this machine's own, are where they are.
    for node in (Node(name="n1", workdir="/srv"), Node(name="n1", workdir=str(head), transport=TransportKind.LOCAL)):
        assert "below_home" not in build_environment_query(node, spec)
    own.rename(tmp_path / "away")
    assert describe_environment(build_environment_query(cluster.nodes[0], spec))["workdir"]


@pytest.mark.parametrize(
    "reply",
    [
        {"folder": "/etc"},
        {"folder": "relative/project"},
        {"folder": "/x\x1b[31m/project"},
        {"folder": 7},
        {"folder": "/" + "x" * 5000 + "/project"},
        {"paths": [True] * 9},
        {"paths": "yes"},
    ],
)
def test_a_node_chooses_no_path_of_ours(head: Path, reply: dict[str, Any]) -> None:
    """It says where its home is, and nothing else."""
    node = Node(name="n1", workdir=str(head))
    with pytest.raises(ValueError, match="invalid"):
        parse_environment(node, specify("train.py out"), reply)


def test_a_script_that_this_machine_lacks_has_its_nearest_file_in_the_specification(head: Path) -> None:
    """So that the check doesn't ask to copy a file that doesn't exist."""
    assert [specify(words).near for words in ("trian.py", "train.py", "other-name.py")] == ["train.py", None, ""]
