"""The subject container: from recorded answers of a node's runtime and of a container to findings."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import format_python_command
from aboard.core.probes.facts import Facts, Unknown, parse_answer
from aboard.core.probes.probe import CommandOutput, ProbeCommand, ProbeParseError
from aboard.diagnoses import Finding, Severity, format_shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.container.container_facts import FailedStart, NodeRuntime, ProcessView, parse_inside, parse_runtime
from aboard.doctor.container.container_messages import match_messages
from aboard.doctor.container.subject import SUBJECT
from aboard.doctor.shared.script_probes import build_rank_command
from aboard.doctor.software import subject as software
from aboard.doctor.software.node_software import SOFTWARE, NodeSoftware, build_inventory_command
from aboard.node_scripts.script_source import RUN_NEXT_WORD, read_script

GIB = 1 << 30
APPTAINER = Container(runtime="apptainer", image="/data/train.sif")
PODMAN = Container(runtime="podman", image="train")
VIEW: dict[str, Any] = {
    "python": "3.11.2",
    "executable": "/usr/bin/python3",
    "gpus": [],
    "rocm": False,
    "driver": False,
    "infiniband": [],
    "shm": 8 * GIB,
    "files": 1048576,
    "locked": None,
    "home": "/home/me",
    "home_writable": True,
    "workdir": "66:1234",
    "users": 65537,
}
RUNTIME: dict[str, Any] = {
    "runtime": "/usr/bin/apptainer",
    "version": "apptainer version 1.4.5",
    "kind": "file",
    "image": "a" * 64,
    "size": 40960,
    "mountable": True,
}
GPUS = ["nvidia0", "nvidia1"]


def _parse(values: dict[str, Any], parse: Any) -> Any:
    return parse(CommandOutput(code=0, stdout=json.dumps(values)))


def _judge(
    *,
    container: Container = APPTAINER,
    outside: dict[str, Any] | None = None,
    inside: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    failed: str = "",
    others: int = 1,
    answers: dict[str, dict[str, Any]] | None = None,
) -> list[Finding]:
    """The findings when the last of the nodes differs in these values."""
    names = [*(f"n{number}" for number in range(1, others + 1)), "odd"]
    nodes = tuple(Node(name=name, workdir="/job", container=container) for name in names)
    well = _parse({**RUNTIME, "view": VIEW}, parse_runtime)
    odd = _parse({**RUNTIME, **(runtime or {}), "view": {**VIEW, **(outside or {})}}, parse_runtime)
    seen: ProcessView | FailedStart = _parse({**VIEW, **(inside or {})}, parse_inside)
    if failed:
        seen = parse_inside(CommandOutput(code=255, stdout="", stderr=failed))
    met = ReachedNode(hostname="h", user="", address="", python="", round_trip=0.01, clock_offset=0.0)
    facts = Facts(
        cluster=Cluster(nodes=nodes),
        contacts=dict.fromkeys(names, met),
        answers={
            "container-runtime": {**dict.fromkeys(names, well), "odd": odd},
            "container-inside": {**dict.fromkeys(names, _parse(VIEW, parse_inside)), "odd": seen},
            **(answers or {}),
        },
    )
    return SUBJECT.judge(facts)


def _list_software(torch: str) -> NodeSoftware:
    return NodeSoftware(
        python="3.11.2",
        executable=Untrusted("/usr/bin/python3"),
        packages={"torch": torch},
        environment="",
        count=1,
        variables={},
        code="",
        files=0,
        cut=False,
        commit=Untrusted(""),
    )


def test_equal_nodes_have_no_finding() -> None:
    """A container that sees all that the node has is fine."""
    assert _judge() == []
    assert _judge(outside={"gpus": GPUS, "driver": True}, inside={"gpus": GPUS, "driver": True}) == []


@pytest.mark.parametrize(
    ("code", "severity", "case"),
    [
        ("container-runtime-missing", Severity.BLOCK, {"runtime": {"runtime": "", "kind": "", "image": ""}}),
        ("container-image-missing", Severity.BLOCK, {"runtime": {"kind": "missing", "image": ""}}),
        (
            "container-image-permission",
            Severity.BLOCK,
            {"runtime": {"kind": "unreadable", "image": "", "problem": "x"}},
        ),
        ("container-image-differs", Severity.BLOCK, {"runtime": {"image": "b" * 64}}),
        ("container-gpu", Severity.BLOCK, {"outside": {"gpus": GPUS, "driver": True}}),
        ("container-gpu", Severity.BLOCK, {"outside": {"rocm": True}}),
        (
            *("container-gpu", Severity.BLOCK),
            {"outside": {"gpus": GPUS, "driver": True}, "inside": {"gpus": GPUS}},
        ),
        (
            *("container-gpu", Severity.WARN),
            {"outside": {"gpus": GPUS, "driver": True}, "inside": {"gpus": GPUS[:1], "driver": True}},
        ),
        ("container-infiniband", Severity.WARN, {"outside": {"infiniband": ["uverbs0"]}}),
        ("container-shm", Severity.WARN, {"inside": {"shm": 64 << 20}}),
        ("container-limits", Severity.WARN, {"inside": {"files": 1024}}),
        (
            *("container-limits", Severity.WARN),
            {"outside": {"infiniband": ["uverbs0"]}, "inside": {"infiniband": ["uverbs0"], "locked": 65536}},
        ),
        ("container-home", Severity.WARN, {"inside": {"home": "/root", "home_writable": False}}),
        ("container-workdir", Severity.BLOCK, {"inside": {"workdir": ""}}),
        ("container-workdir", Severity.BLOCK, {"inside": {"workdir": "7:7"}}),
        ("container-subordinate-ids", Severity.WARN, {"inside": {"users": 1}, "container": PODMAN}),
        ("container-no-space", Severity.WARN, {"runtime": {"size": 9 * GIB, "mountable": False, "free": 10 * GIB}}),
        ("container-unpacking", Severity.INFO, {"runtime": {"size": 9 * GIB, "mountable": False, "free": 90 * GIB}}),
    ],
)
def test_a_difference_is_named(code: str, severity: Severity, case: dict[str, Any]) -> None:
    """Each difference is one finding, on the node that has it."""
    (finding,) = _judge(**case)
    assert (finding.code, finding.severity, finding.nodes) == (code, severity, ("odd",))
    assert finding.fix


@pytest.mark.parametrize(
    "case",
    [
        # As low outside: the node's own finding.
        {"outside": {"files": 1024}, "inside": {"files": 1024}},
        {"outside": {"shm": 64 << 20}, "inside": {"shm": 64 << 20}},
        {"outside": {"home_writable": False}, "inside": {"home_writable": False}},
        {"outside": {"workdir": ""}, "inside": {"workdir": ""}},
        # Enough, though less.
        {"inside": {"shm": 2 * GIB}},
        {"inside": {"files": 65536}},
        # Apptainer always has one user.
        {"inside": {"users": 1}},
        # Unpacked in no time.
        {"runtime": {"mountable": False, "free": GIB}},
        # A directory of the image, as the user asked for.
        {"inside": {"workdir": "7:7"}, "container": replace(APPTAINER, workdir="/workspace")},
        # Neither has a digest.
        {"runtime": {"kind": "directory", "image": ""}},
    ],
)
def test_no_finding_for_what_is_no_fault_of_the_container(case: dict[str, Any]) -> None:
    """A container can't have more than its node, and small differences do no harm."""
    assert _judge(**case) == []


def test_the_image_is_copied_from_a_node_that_has_it() -> None:
    """The pasted command replaces the file at once, and as root where the directory belongs to root."""
    (finding,) = _judge(runtime={"kind": "missing", "image": ""})
    assert finding.fix == (
        "ssh n1 'cat /data/train.sif' | ssh odd 'cat > /data/train.sif.new && mv /data/train.sif.new /data/train.sif'"
    )
    (finding,) = _judge(runtime={"image": "b" * 64, "replaceable": False})
    assert "ssh odd 'sudo tee /data/train.sif.new >/dev/null && sudo mv" in finding.fix
    (finding,) = _judge(runtime={"kind": "missing", "image": ""}, container=PODMAN)
    assert finding.fix.startswith("ssh n1 'podman save train' | ssh odd 'podman load'")


def test_an_image_that_no_node_has_comes_from_the_head() -> None:
    """There is nothing to copy from."""
    facts: dict[str, Any] = {"runtime": {"kind": "missing", "image": ""}, "others": 0}
    assert _judge(**facts)[0].fix.startswith("aboard sync --data /data/train.sif")
    assert "podman save train" in _judge(**facts, container=PODMAN)[0].fix


def test_the_most_common_image_is_right() -> None:
    """Of three nodes, the one that differs is named with both digests."""
    (finding,) = _judge(runtime={"image": "b" * 64}, others=2)
    assert finding.nodes == ("odd",)
    assert finding.seen == "/data/train.sif: odd has bbbbbbbbbbbb, n[1-2] have aaaaaaaaaaaa"


def test_a_container_that_does_not_start_is_named_by_the_runtimes_message() -> None:
    """The most specific of the lines decides; nodes with the same message share a finding."""
    text = 'INFO:    squashfuse not found\nFATAL:   "python3": executable file not found in $PATH\n'
    (finding,) = _judge(failed=text)
    assert (finding.code, finding.nodes) == ("container-program-missing", ("odd",))
    assert 'apptainer reports: "FATAL:   "python3"' in finding.seen
    (finding,) = _judge(failed="\x1b[31mno idea; $(reboot)\n")
    assert finding.code == "container-not-started"
    assert "\x1b" not in finding.seen
    assert "apptainer exec --bind /job --pwd /job /data/train.sif true" in finding.fix
    assert "reboot" not in finding.fix


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ('FATAL:   "python3": executable file not found in $PATH', "container-program-missing"),
        ("FATAL:   could not open image /a.sif: image format not recognized", "container-image-invalid"),
        (
            "FATAL:   container creation failed: mount /data->/data error: mount source /data doesn't exist",
            "container-bind",
        ),
        ("no idea", "container-not-started"),
        ("Traceback (most recent call last):\n  ...\nOSError: disk", ""),
        ("aboard: line 1 of setup failed: module load cuda", ""),
    ],
)
def test_a_quick_check_names_it_too(printed: str, code: str) -> None:
    """It starts the container only to list the software inside: what fails there blocks; what fails later does not."""
    failed = parse_answer(SOFTWARE, CommandOutput(code=255, stdout="", stderr=f"{printed}\n"))
    found = _judge(answers={"container-inside": {}, "software": {"n1": _list_software("2.7"), "odd": failed}})
    assert [(each.code, each.severity, each.nodes) for each in found] == (
        [(code, Severity.BLOCK, ("odd",))] if code else []
    )


def test_a_missing_runtime_explains_the_start_that_fails() -> None:
    """What the container could not say is no second finding."""
    assert len(_judge(runtime={"runtime": "", "kind": "", "image": ""}, failed="can't start apptainer: gone")) == 1
    message = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
    (finding,) = _judge(
        runtime={"kind": "unusable", "image": "", "problem": message},
        failed=message,
        container=Container(runtime="docker", image="train"),
    )
    assert finding.code == "container-daemon"


def test_a_container_that_prints_nothing() -> None:
    """There is still a finding, without a quotation of nothing."""
    assert match_messages([])[2].visible() == "it printed nothing"
    assert parse_inside(CommandOutput(code=9, stdout="")) == FailedStart(lines=(Untrusted("exit code 9"),))


def test_other_versions_than_outside_are_a_remark() -> None:
    """Someone who upgrades torch outside sees that ranks do not use it."""
    ours, newer = _list_software("2.7.1"), _list_software("2.8.0")
    (finding,) = _judge(answers={"software": {"odd": ours}, "outside-software": {"odd": newer, "n1": newer}})
    assert (finding.code, finding.severity) == ("container-versions", Severity.INFO)
    assert finding.seen == "in the container: torch 2.7.1 (outside 2.8.0)"


def test_versions_that_differ_inside_are_fixed_by_the_image() -> None:
    """Nothing that is installed outside would change what ranks import."""
    nodes = tuple(Node(name=name, container=APPTAINER) for name in ("n1", "n2", "odd"))
    answers = {"n1": _list_software("2.7.1"), "n2": _list_software("2.7.1"), "odd": _list_software("2.8.0")}
    facts = Facts(cluster=Cluster(nodes=nodes), contacts={}, answers={"software": answers})
    (finding,) = software.find_differing_versions(facts)
    assert finding.fix.startswith("ssh n1 'cat /data/train.sif' | ssh odd 'cat > ")
    assert "pip" not in finding.fix


def test_what_is_unknown_is_no_pass() -> None:
    """A node that does not answer gets a finding; one without a container gets none."""
    lost = Unknown(why="the node sent an invalid reply")
    (finding,) = _judge(answers={"container-inside": {"odd": lost}})
    assert finding.code == "unknown-container-inside"
    assert "apptainer exec" in finding.fix
    nodes = (Node(name="n1", container=APPTAINER), Node(name="n2"))
    facts = Facts(cluster=Cluster(nodes=nodes), contacts={}, answers={"container-inside": {"n2": lost}})
    assert SUBJECT.judge(facts) == []
    assert SUBJECT.applies(facts.cluster)
    assert not SUBJECT.applies(Cluster(nodes=nodes[1:]))
    assert dict(SUBJECT.untested(facts)) == {"n2": "no container"}


def test_probes_of_ranks_run_inside() -> None:
    """Setup lines run outside, before the runtime; variables and the working directory are the ranks'."""
    container = replace(APPTAINER, env={"HF_HOME": "/cache"}, python="/opt/py/bin/python")
    node = Node(name="n1", setup=("module load apptainer",), env={"A": "1"}, workdir="/job", container=container)
    fields = build_rank_command(node, "-c", "pass").describe()
    assert fields["argv"] == ["/opt/py/bin/python", "-c", RUN_NEXT_WORD, "pass"]
    assert fields["container"]["image"] == "/data/train.sif"
    assert fields["setup"][:2] == ["bash", "-c"]
    assert (fields["env"], fields["cwd"]) == ({"A": "1", "HF_HOME": "/cache"}, "/job")
    inventory = build_inventory_command(replace(node, setup=()))
    assert inventory.source is None
    assert inventory.inside is not None
    outside = next(probe for probe in SUBJECT.probes if probe.name == "outside-software").question_for(node)
    assert isinstance(outside, ProbeCommand)
    assert outside.inside is None


def test_commands_of_fixes_enter_the_container() -> None:
    """They bind the working directory, and pass the user's options on."""
    node = Node(
        name="n1", workdir="/job", container=replace(PODMAN, binds=("/data:/data:ro",), options=("--env", "A=b c"))
    )
    line = shlex.split(format_python_command(node, format_shell("--version")))
    assert line[:2] == ["ssh", "n1"]
    assert shlex.split(line[2]) == [
        *(
            "podman",
            "run",
            "--rm",
            "--network=host",
            "--ipc=host",
            "--volume",
            "/data:/data:ro",
            "--volume",
            "/job:/job",
        ),
        *("--workdir", "/job", "--env", "A=b c", "train", "python3", "--version"),
    ]


def test_the_scripts_describe_this_machine(tmp_path: Path) -> None:
    """Both run with any Python, and agree where both are outside."""
    image = tmp_path / "train.sif"
    image.write_bytes(b"image")
    (tmp_path / "bin").mkdir()
    runtime = tmp_path / "bin" / "apptainer"
    runtime.write_text("#!/bin/sh\necho apptainer version 9\n")
    runtime.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def run(*words: str) -> CommandOutput:
        argv = [sys.executable, "-ISc", read_script("container_view"), *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, check=True)
        return CommandOutput(code=done.returncode, stdout=done.stdout)

    found = parse_runtime(run("outside", str(tmp_path), "apptainer", str(image)))
    assert isinstance(found, NodeRuntime)
    assert (found.kind, found.size, found.version.visible()) == ("file", 5, "apptainer version 9")
    assert found.image == "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    assert parse_inside(run("inside", str(tmp_path))) == found.view
    assert parse_runtime(run("outside", "", "apptainer", str(tmp_path / "no.sif"))).kind == "missing"
    assert parse_runtime(run("outside", "", "no-runtime", "x")).runtime == ""


@pytest.mark.parametrize("field", ["runtime", "image", "view"])
def test_a_hostile_answer_is_unknown(field: str) -> None:
    """A node can't smuggle anything into a fix or onto the screen."""
    with pytest.raises(ProbeParseError):
        _parse({**RUNTIME, "view": VIEW, field: ["\x1b[2J; rm -rf /"]}, parse_runtime)


def test_facts_are_asked_for_once() -> None:
    """A launch asks only for the runtime and the image: the container itself starts soon enough."""
    assert [probe.name for probe in SUBJECT.probes if probe.quick] == ["container-runtime"]
    assert SOFTWARE.quick
