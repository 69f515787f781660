"""Recordings: a folder becomes a node that answers, and its rules can be held against it."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from replayed_checks import replay_recordings

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeCommand, ProbeFiles
from aboard.diagnoses import Severity
from aboard.doctor.fabric import subject as fabric
from aboard.doctor.fabric.roce_rails import PINGS
from aboard.doctor.gpu import subject as gpu
from aboard.node_scripts.script_source import read_script
from aboard.testing.recorded_node import NodeRecording, load_recording

RECORDINGS = Path(__file__).parents[1] / "recordings"
SUBJECTS = (fabric.SUBJECT, gpu.SUBJECT)


def test_a_star_stays_between_two_slashes() -> None:
    """As on the node: what is deeper doesn't match, and what isn't there isn't in the answer."""
    recording = NodeRecording(files={"/a/1/x": "one", "/a/2/x": "two", "/a/1/b/x": "deep", "/a/1/y": "other"})
    answer = recording.answer(ProbeFiles(globs=("/a/*/x", "/nowhere"), limit=2))
    assert answer == FileContents(files={"/a/1/x": "on", "/a/2/x": "tw"})


def test_a_command_that_was_not_recorded_is_not_there() -> None:
    """It ends with 127, as on a machine without the program."""
    recording = NodeRecording(commands={("date",): CommandOutput(code=0, stdout="today\n")})
    assert recording.answer(ProbeCommand(argv=("date",))) == CommandOutput(code=0, stdout="today\n")
    missing = recording.answer(ProbeCommand(argv=("date", "-u")))
    assert isinstance(missing, CommandOutput)
    assert missing.code == 127


def test_a_folder_like_another_has_what_that_has_but_for_its_own(tmp_path: Path) -> None:
    """Own files and commands win, and what it is without is gone."""
    for name, about in {"base": {}, "odd": {"like": "base", "without": ["/gone/"]}}.items():
        (tmp_path / name / "root" / "etc").mkdir(parents=True)
        (tmp_path / name / "commands").mkdir()
        (tmp_path / name / "about.json").write_text(json.dumps(about))
        (tmp_path / name / "root" / "etc" / "who").write_text(name)
        (tmp_path / name / "commands" / "out.txt").write_text(f"{name}\n")
        entries = [{"argv": ["who", name], "code": 3, "stdout": "out.txt"}]
        (tmp_path / name / "commands.json").write_text(json.dumps(entries))
    (tmp_path / "base" / "root" / "gone").mkdir()
    (tmp_path / "base" / "root" / "gone" / "file").write_text("text")
    assert "/gone/file" in load_recording(tmp_path / "base").files
    odd = load_recording(tmp_path / "odd")
    assert odd.files == {"/etc/who": "odd"}
    assert odd.commands == {
        ("who", "base"): CommandOutput(code=3, stdout="base\n"),
        ("who", "odd"): CommandOutput(code=3, stdout="odd\n"),
    }


def test_exercises_get_files_and_commands_back_and_nothing_else() -> None:
    """What nodes do to each other isn't in a recording, and stays unknown."""

    def script(_facts: Facts) -> Generator[Any, Any, Any]:
        first = yield {"n1": ProbeRequest(op="read", fields={"globs": ["/x"]})}
        second = yield {"n1": ProbeRequest(op="run", fields={"argv": ["true"]})}
        third = yield {"n1": ProbeRequest(op="connect")}
        return first["n1"], second["n1"], third["n1"]

    subject = Subject(
        name="s", title="", probes=(), rules=(), multi_node_probes=(MultiNodeProbe(name="e", script=script),)
    )
    recording = NodeRecording(files={"/x": "y"}, commands={("true",): CommandOutput(code=0, stdout="")})
    facts = replay_recordings(Cluster(nodes=(Node(name="n1"),)), subject, {"n1": recording})
    read, ran, connected = facts.outcomes["e"]
    assert read == {"files": {"/x": "y"}}
    assert ran == {"code": 0, "stdout": "", "stderr": ""}
    assert isinstance(connected, Unknown)


@pytest.mark.parametrize("folder", sorted(RECORDINGS.iterdir()), ids=lambda folder: folder.name)
def test_every_recording_says_what_it_is_and_answers_every_command(folder: Path) -> None:
    """A command whose words have changed would else be `not there` in all of them, and the test of its rule empty."""
    assert json.loads((folder / "about.json").read_text("utf-8"))["what"].endswith(".")
    questions = [probe.question_for(Node(name="n1")) for subject in SUBJECTS for probe in subject.probes]
    # A program of ours is in no recording, since its text changes: its own tests run it.
    own = read_script("cuda_support")
    asked = {question.argv for question in questions if isinstance(question, ProbeCommand) and own not in question.argv}
    # Whom a node pings is up to who its neighbour is.
    recorded = {argv for argv in load_recording(folder).commands if PINGS not in argv}
    assert recorded <= asked
    if folder.name != "plain-cpu":
        assert recorded == asked


@pytest.mark.ci
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_every_code_that_recordings_bring_out_has_its_story(subject: Subject) -> None:
    """And none stops a launch: recordings prove less than machines."""
    stories = {story.code: story for story in subject.diagnoses}
    assert len(stories) == len(subject.diagnoses)
    told = set()
    every = {folder.name: load_recording(folder) for folder in RECORDINGS.iterdir()}
    nodes = tuple(Node(name=f"n{number}", slots=8) for number in range(4))
    for odd in every.values():
        for beside in ("h100-infiniband", "a100-roce"):
            recordings = {node.name: every[beside] for node in nodes} | {"n3": odd}
            for finding in subject.judge(replay_recordings(Cluster(nodes=nodes), subject, recordings)):
                told.add(finding.code)
                assert finding.severity <= stories[finding.code].severity <= Severity.WARN
                assert all((finding.seen, finding.why, finding.fix, finding.nodes))
    own = {code for code in stories if code.startswith(f"{subject.name}-")}
    # These need a setting or another file, and have tests of their own.
    assert own - told <= {"fabric-hca-absent", "fabric-topology", "gpu-cuda", "gpu-state"}
