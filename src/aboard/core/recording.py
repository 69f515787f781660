"""A recording: what a node's files and commands said once, to be asked and judged again without the node."""

from collections.abc import Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import Any

from aboard.core.cluster import Cluster
from aboard.core.exercise import Ask, Exercise
from aboard.core.facts import Facts, Unknown, read
from aboard.core.probe import Answer, Command, Contents, Files, Output, Question
from aboard.core.reach import Reached
from aboard.core.rule import Subject
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Files by their absolute path, and outputs by argv. What isn't in it was not on that machine."""

    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[tuple[str, ...], Output] = field(default_factory=dict)

    def answer(self, question: Question) -> Answer:
        """What the node would have answered."""
        if isinstance(question, Files):
            wanted = [glob.split("/") for glob in question.globs]
            return Contents(
                files={path: text[: question.limit] for path, text in self.files.items() if _matches(path, wanted)}
            )
        missing = Output(code=127, stdout="", stderr=f"can't start {question.argv[0]}: No such file or directory")
        return self.commands.get(question.argv, missing)


def replay(cluster: Cluster, subject: Subject, recordings: Mapping[str, Recording]) -> Facts:
    """The facts of a full check of nodes that answer as recorded; a node without a recording stays unknown."""
    facts = Facts(
        cluster=cluster,
        contacts={
            name: Reached(hostname=name, user="", address="", python="", round_trip=0.0, clock_offset=0.0)
            for name in recordings
        },
        answers={
            probe.name: {
                name: read(probe, recording.answer(probe.asked(cluster.node(name))))
                for name, recording in recordings.items()
            }
            for probe in subject.probes
        },
    )
    for exercise in subject.exercises:
        facts = replace(facts, outcomes={**facts.outcomes, exercise.name: _held(exercise, facts, recordings)})
    return facts


def _held(exercise: Exercise[Any], facts: Facts, recordings: Mapping[str, Recording]) -> Any:
    script = exercise.script(facts)
    try:
        asked = next(script)
        while True:
            asked = script.send({name: _reply(recordings[name], ask) for name, ask in asked.items()})
    except StopIteration as done:
        return done.value


def _reply(recording: Recording, ask: Ask) -> Mapping[str, Any] | Unknown:
    """A recording knows what was in a file or printed; what nodes do to each other can't be played back."""
    if ask.op == "read":
        question: Question = Files(globs=tuple(ask.fields["globs"]))
    elif ask.op == "run":
        question = Command(argv=tuple(ask.fields["argv"]))
    else:
        return Unknown(why=f"`{ask.op}` is not in a recording")
    answer = recording.answer(question)
    if isinstance(answer, Contents):
        return {"files": dict(answer.files)}
    return {"code": answer.code, "stdout": answer.stdout, "stderr": answer.stderr}


def _matches(path: str, wanted: list[list[str]]) -> bool:
    """A star stands for what is between two slashes, as on the node."""
    parts = path.split("/")
    return any(len(parts) == len(glob) and all(map(fnmatchcase, parts, glob)) for glob in wanted)
