"""Containers that do not start: the runtime's message gives the cause, the node and the command."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from evidence_builders import ending
from made_events import made_event

from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.records.plan_json import format_plan_json
from aboard.engine.records.recorded_run import parse_recorded_plan

APPTAINER = Container(runtime="apptainer", image="/data/train.sif")
PODMAN = Container(runtime="podman", image="localhost/train")
MISSING_FILE = (
    "FATAL:   While checking container encryption: could not open image /data/train.sif: failed to retrieve path for"
    " /data/train.sif: lstat /data/train.sif: no such file or directory"
)
NOT_PULLED = (
    "Error: initializing source docker://localhost/train:latest: pinging container registry localhost: Get"
    ' "https://localhost/v2/": dial tcp [::1]:443: connect: connection refused'
)


def _plan(container: Container | None) -> Plan:
    parts = tuple(
        NodePlan(
            node=Node(name=f"n{at}", container=container),
            starts=(Start(child=str(at - 1), argv=("python3", "t.py"), rank=at - 1, container=container),),
        )
        for at in (1, 2, 3)
    )
    program = Program(kind=ProgramKind.SCRIPT, target="t.py")
    return Plan(run="r", program=program, master=MasterAddress(node="n1", address="10.0.0.1"), parts=parts)


def _event(kind: str, rank: int, at: float = 1.0, **data: Any) -> Event:
    return made_event(kind, node=f"n{rank + 1}", seq=1, at=at, child=str(rank), **data)


def _ending(container: Container | None, *events: Event, tails: Mapping[int, tuple[str, ...]]) -> tuple[Finding, ...]:
    said = {rank: tuple(map(Untrusted, lines)) for rank, lines in tails.items()}
    return ending(Evidence(plan=_plan(container), run=Run.replay("r", events), tails=said))


def test_a_missing_image_names_its_nodes_and_copies_it_from_another() -> None:
    """Ranks on nodes with the image are no part of it, also if they lost their peers a moment earlier."""
    (finding,) = _ending(
        APPTAINER,
        _event("phase", 0, phase="store"),
        _event("exited", 0, 0.9, code=1),
        _event("exited", 1, 1.0, code=255),
        _event("exited", 2, 1.1, code=255),
        tails={0: ("RuntimeError: Connection closed by peer",), 1: (MISSING_FILE,), 2: (MISSING_FILE,)},
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("container-image-missing", ("n2", "n3"), (1, 2))
    assert finding.seen.startswith('2 ranks on n[2-3] did not start; apptainer reports: "FATAL: While checking')
    assert finding.fix.startswith('for node in n2 n3; do scp -3 n1:/data/train.sif "$node":/data/train.sif; done')
    assert finding.fix.endswith("aboard logs r --rank 1    # the end of the rank's output")
    assert [each.code for each in finding.consequences] == ["run-followed"]


def test_a_registry_that_refuses_is_no_lost_peer() -> None:
    """Podman's message about a missing image has the words of a rank that can't reach another."""
    (finding,) = _ending(PODMAN, _event("exited", 1, code=125), tails={1: ("Trying to pull …", NOT_PULLED)})
    assert (finding.code, finding.nodes) == ("container-image-missing", ("n2",))
    assert finding.fix.startswith("for node in n2; do ssh n1 podman save localhost/train | ssh")


@pytest.mark.parametrize(
    ("container", "fix"),
    [
        (APPTAINER, "aboard sync --data /data/train.sif "),
        (PODMAN, "for node in n1 n2 n3; do podman save localhost/train | ssh"),
        (Container(runtime="apptainer", image="docker://lab/train"), "apptainer pull docker://lab/train "),
    ],
)
def test_an_image_that_no_node_has_comes_from_here_or_a_registry(container: Container, fix: str) -> None:
    """By the runtime and the image's name."""
    line = "FATAL:   Unable to handle docker://lab/train uri: x" if "://" in container.image else NOT_PULLED
    events = [_event("exited", rank, code=255) for rank in range(3)]
    (finding,) = _ending(container, *events, tails=dict.fromkeys(range(3), (line,)))
    assert finding.code == "container-image-missing"
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    ("lines", "code", "fix"),
    [
        (("sh: 1: exec: python9: not found",), "container-program-missing", "apptainer exec /data/train.sif sh -c "),
        (("bash: line 3: exec: apptainer: not found",), "container-runtime-missing", "command -v apptainer "),
        (
            (
                "FATAL:   while extracting x: failed: WARNING: a",
                "",
                "FATAL ERROR: File system corruption detected",
                ":",
            ),
            "container-image-invalid",
            "ls -l /data/train.sif; sha256sum /data/train.sif ",
        ),
        (
            (
                "FATAL:   while extracting x: failed: \x1b[91mERROR  : Failed to create user namespace: maximum",
                "\x1b[0m: 1",
            ),
            "container-user-namespaces",
            "sysctl user.max_user_namespaces ",
        ),
        (
            ("FATAL:   container creation failed: squashfuse_ll exited with status 1: Operation not permitted",),
            "container-not-started",
            "apptainer exec /data/train.sif true ",
        ),
    ],
)
def test_each_message_gives_its_own_cause(lines: tuple[str, ...], code: str, fix: str) -> None:
    """The most specific line counts, wherever it is among the last ones."""
    (finding,) = _ending(APPTAINER, _event("exited", 1, code=255), tails={1: lines})
    assert (finding.code, finding.nodes, finding.ranks) == (code, ("n2",), (1,))
    assert finding.fix.startswith(fix)


def test_a_runtime_that_the_agent_cannot_start_is_missing() -> None:
    """Another program that is missing is the user's own."""
    (finding,) = _ending(
        APPTAINER, _event("failed", 1, why="can't start apptainer: No such file or directory"), tails={}
    )
    assert (finding.code, finding.nodes) == ("container-runtime-missing", ("n2",))
    (finding,) = _ending(APPTAINER, _event("failed", 1, why="can't start bash: No such file or directory"), tails={})
    assert finding.code == "run-not-started"


@pytest.mark.parametrize(
    ("why", "code", "fix"),
    [
        (
            "can't unpack /x.sif: ERROR: y; Write on output file failed because No space left on device; FATAL ERROR",
            "container-no-space",
            "df -h /tmp ",
        ),
        ("OSError: can't unpack an image to /gone: No such file", "container-not-started", "ls -ld /gone "),
        ("can't unpack /data/train.sif: exit code 3", "container-not-started", "apptainer exec /data/train.sif true "),
    ],
)
def test_an_image_that_is_not_unpacked_names_the_cause(why: str, code: str, fix: str) -> None:
    """The agent unpacks it once for all ranks of a node, and fails them with what the runtime printed."""
    (finding,) = _ending(APPTAINER, *(_event("failed", rank, why=why) for rank in (1, 2)), tails={})
    assert (finding.code, finding.nodes, finding.ranks) == (code, ("n2", "n3"), (1, 2))
    assert finding.fix.startswith(fix)


def test_a_record_keeps_which_container_ranks_ran_in() -> None:
    """So that `aboard why RUN` suggests the same command as the launch did."""
    document = json.loads(format_plan_json(_plan(PODMAN)))
    plan = parse_recorded_plan(document, "r")
    assert plan is not None
    assert [start.container for _node, start in plan.starts()] == [PODMAN] * 3
    document["nodes"][0]["container"]["runtime"] = "rm -rf"
    changed = parse_recorded_plan(document, "r")
    assert changed is not None
    assert [start.container for _node, start in changed.starts()] == [None, PODMAN, PODMAN]


def test_a_module_that_the_image_lacks_belongs_into_the_image() -> None:
    """What pip installs outside, or into a running container, the next ranks don't have."""
    (finding,) = _ending(
        PODMAN,
        _event("phase", 1, phase="started"),
        _event("raised", 1, type="ModuleNotFoundError", message="No module named 'flash_attn'"),
        _event("exited", 1, code=1),
        tails={},
    )
    assert finding.code == "run-raised"
    assert finding.fix.startswith(
        "# the image lacks flash_attn: add `pip install flash_attn` to the definition of local"
    )
    assert "ssh" not in finding.fix


def test_messages_of_a_rank_that_had_started_are_its_own() -> None:
    """A training that runs containers itself may print a runtime's message and die of something else."""
    (finding,) = _ending(
        APPTAINER, _event("phase", 1, phase="torch"), _event("exited", 1, code=1), tails={1: (MISSING_FILE,)}
    )
    assert finding.code == "run-exited"


def test_a_program_that_starts_a_container_itself_is_understood() -> None:
    """Without `container:` in aboard.yaml, the runtime's own message still names the cause, a shell's doesn't."""
    (finding,) = _ending(None, _event("exited", 1, code=255), tails={1: (MISSING_FILE,)})
    assert finding.code == "container-image-missing"
    assert finding.fix.startswith("ls -l /data/train.sif    # on n2")
    (finding,) = _ending(None, _event("exited", 1, code=127), tails={1: ("sh: 1: exec: python9: not found",)})
    assert finding.code == "run-exited"
