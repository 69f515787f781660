"""What stayed unknown: a question without an answer is said, never passed over."""

from collections.abc import Iterable, Iterator
from typing import Any

from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Files, Probe, Question
from aboard.core.rule import Rule
from aboard.core.shell import join, quote
from aboard.diagnoses import Diagnosis, Finding, Fix, Shell, unknown


def unknown_facts(*probes: Probe[Any]) -> Rule:
    """A rule that says which of these probes got no answer, and where."""

    def rule(facts: Facts) -> Iterator[Finding]:
        for probe in probes:
            fact = unknown.fact(probe.name)
            for name, answer in facts.unknown(probe).items():
                node = facts.cluster.node(name)
                yield fact.finding(
                    nodes=(name,),
                    seen=f"{probe.name} stayed unknown: {answer.why}",
                    fix=_by_hand(fact, node, probe.asked(node)),
                )

    return rule


def unknown_stories(probes: Iterable[Probe[Any]]) -> tuple[Diagnosis, ...]:
    """One for each code that `unknown_facts` can find."""
    return tuple(unknown.fact(probe.name) for probe in probes)


def _by_hand(fact: Diagnosis, node: Node, question: Question) -> Fix:
    if isinstance(question, Files):
        # A pattern of our own, for the shell at the far end.
        return fact.fix("files", target=node.target, glob=Shell(question.globs[0]))
    # Twice, since ssh's words are read by a shell at the far end once more.
    return fact.fix("command", target=node.target, command=Shell(quote(join(question.argv))))
