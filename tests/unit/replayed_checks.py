"""Replays a full check from recordings of nodes, for tests of the rules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown, parse_answer
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest
from aboard.core.probes.probe import FileContents, ProbeCommand, ProbeFiles, ProbeQuestion
from aboard.testing.recorded_node import NodeRecording


def replay_recordings(cluster: Cluster, subject: Subject, recordings: Mapping[str, NodeRecording]) -> Facts:
    """The facts of a full check replayed from recordings; a node without a recording is unknown."""
    facts = Facts(
        cluster=cluster,
        contacts={
            name: ReachedNode(hostname=name, user="", address="", python="", round_trip=0.0, clock_offset=0.0)
            for name in recordings
        },
        answers={
            probe.name: {
                name: parse_answer(probe, recording.answer(probe.question_for(cluster.node(name))))
                for name, recording in recordings.items()
            }
            for probe in subject.probes
        },
    )
    for multi_node_probe in subject.multi_node_probes:
        facts = replace(
            facts, outcomes={**facts.outcomes, multi_node_probe.name: _run_probe(multi_node_probe, facts, recordings)}
        )
    return facts


def _run_probe(probe: MultiNodeProbe[Any], facts: Facts, recordings: Mapping[str, NodeRecording]) -> Any:
    script = probe.script(facts)
    try:
        requests = next(script)
        while True:
            requests = script.send({name: _build_reply(recordings[name], ask) for name, ask in requests.items()})
    except StopIteration as done:
        return done.value


def _build_reply(recording: NodeRecording, ask: ProbeRequest) -> Mapping[str, Any] | Unknown:
    """Replays files and output; traffic between nodes can't be replayed."""
    if ask.op == "read":
        question: ProbeQuestion = ProbeFiles(globs=tuple(ask.fields["globs"]))
    elif ask.op == "run":
        question = ProbeCommand(argv=tuple(ask.fields["argv"]))
    else:
        return Unknown(why=f"a recording can't answer `{ask.op}`")
    answer = recording.answer(question)
    if isinstance(answer, FileContents):
        return {"files": dict(answer.files)}
    return {"code": answer.code, "stdout": answer.stdout, "stderr": answer.stderr}
