"""Findings for probes that got no answer: unknown is reported, never treated as a pass."""

from collections.abc import Iterable, Iterator
from typing import Any

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import format_node_command, format_python_command
from aboard.core.probes.check_subject import Rule
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeCommand, ProbeFiles, ProbeQuestion
from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import Diagnosis, Finding, Fix, Shell, format_shell
from aboard.diagnoses.nodes import unanswered_probes


def make_unknown_rule(*probes: Probe[Any]) -> Rule:
    """Builds the rule that reports which of these probes got no answer, and on which nodes."""

    def rule(facts: Facts) -> Iterator[Finding]:
        for probe in probes:
            fact = unanswered_probes.declare_unanswered(probe.name)
            for name, answer in facts.unknown(probe).items():
                node = facts.cluster.node(name)
                yield fact.finding(
                    nodes=(name,),
                    seen=f"could not check {probe.name}: {answer.why}",
                    fix=_build_manual_fix(fact, node, probe.question_for(node)),
                )

    return rule


def list_unknown_diagnoses(probes: Iterable[Probe[Any]]) -> tuple[Diagnosis, ...]:
    """One diagnosis for each code that `make_unknown_rule` can report."""
    return tuple(unanswered_probes.declare_unanswered(probe.name) for probe in probes)


def _build_manual_fix(fact: Diagnosis, node: Node, question: ProbeQuestion) -> Fix:
    if isinstance(question, ProbeCommand) and question.inside is not None:
        # The script may be long; usually the container itself does not start.
        return fact.fix(line=format_python_command(node, format_shell("--version")))
    # The pattern is ours, and the node's shell expands it.
    line = f"cat {question.globs[0]}" if isinstance(question, ProbeFiles) else join_argv(question.argv)
    return fact.fix(line=format_node_command(node, Shell(line)))
