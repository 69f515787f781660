"""What stayed unknown: a question without an answer is said, never passed over."""

from collections.abc import Iterable, Iterator
from typing import Any

from aboard.core import shell
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Files, Probe, Question
from aboard.core.rule import Rule
from aboard.diagnoses import Diagnosis, Finding, Severity

_WHY = "What can't be asked can't be vouched for."


def unknown_facts(*probes: Probe[Any]) -> Rule:
    """A rule that says which of these probes got no answer, and where."""

    def rule(facts: Facts) -> Iterator[Finding]:
        for probe in probes:
            for name, unknown in facts.unknown(probe).items():
                yield Finding(
                    code=f"unknown-{probe.name}",
                    severity=Severity.WARN,
                    nodes=(name,),
                    seen=f"{probe.name} stayed unknown: {unknown.why}",
                    why=_WHY,
                    fix=_by_hand(facts.cluster.node(name), probe.asked(facts.cluster.node(name))),
                )

    return rule


def unknown_stories(probes: Iterable[Probe[Any]]) -> tuple[Diagnosis, ...]:
    """One story for each code that `unknown_facts` can find."""
    return tuple(
        Diagnosis(
            code=f"unknown-{probe.name}",
            title=f"{probe.name} could not be asked",
            severity=Severity.WARN,
            symptoms=(f"{probe.name} stayed unknown",),
            explanation=f"{_WHY} The file or the command is not there, may not be read, took too long, or answered in"
            " a way"
            " that this version doesn't know.",
            remedy="Type the command of the finding and look at what it says. If it looks right to you, the parser is"
            " wrong: please open an issue with that output.",
        )
        for probe in probes
    )


def _by_hand(node: Node, question: Question) -> str:
    if isinstance(question, Files):
        return f"ssh {node.target} cat {question.globs[0]}"
    # Twice, since ssh's words are read by a shell at the far end once more.
    return shell.join(("ssh", node.target, shell.join(question.argv)))
