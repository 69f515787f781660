"""Exercises: rounds go out to the right nodes, replies come back into the script."""

import asyncio

import pytest

from aboard.core.cluster import Cluster
from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.node import Node
from aboard.core.rule import Subject
from aboard.flows import drill
from aboard.flows.check import Report, check
from aboard.wires import link

CLUSTER = Cluster(nodes=(Node(name="a", local=True), Node(name="b", local=True)))


def _check(exercise: "Exercise[object]") -> Report:
    subject = Subject(name="x", title="", probes=(), rules=(), exercises=(exercise,))
    return asyncio.run(check(CLUSTER, (subject,)))


def test_rounds_follow_each_other() -> None:
    """A script sees each round's replies, by node, before it says the next one."""

    def script(facts: Facts) -> "Script[object]":
        first = yield {node.name: Ask(op="run", fields={"argv": ["echo", node.name]}) for node in facts.reached()}
        said = {name: reply["stdout"] for name, reply in first.items() if not isinstance(reply, Unknown)}
        second = yield {"b": Ask(op="run", fields={"argv": ["echo", said["a"].strip() + "!"]})}
        reply = second["b"]
        return None if isinstance(reply, Unknown) else reply["stdout"]

    exercise = Exercise(name="echo", script=script)
    assert _check(exercise).facts.outcome(exercise) == "a!\n"


def test_a_node_that_cannot_is_an_unknown() -> None:
    """An op that a node refuses, or a node that isn't there, is an Unknown in the replies."""

    def script(_facts: Facts) -> "Script[object]":
        replies = yield {"a": Ask(op="no-such-op"), "nobody": Ask(op="ping")}
        return {name: isinstance(reply, Unknown) for name, reply in replies.items()}

    exercise = Exercise(name="refused", script=script)
    assert _check(exercise).facts.outcome(exercise) == {"a": True, "nobody": True}


def test_a_script_that_stumbles_is_an_unknown() -> None:
    """A reply that a script never saw makes its outcome unknown, and the check goes on."""

    def script(_facts: Facts) -> "Script[object]":
        replies = yield {"a": Ask(op="ping")}
        return replies["a"]["no such field"]  # type: ignore[index] # the mistake that this is about

    exercise = Exercise(name="stumbles", script=script)
    outcome = _check(exercise).facts.outcome(exercise)
    assert isinstance(outcome, Unknown)
    assert "KeyError" in outcome.why


def test_a_long_round_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents end themselves when the head says nothing; while a round lasts it does, also to who isn't asked."""
    monkeypatch.setattr(link, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(drill, "BEAT_SECONDS", 0.2)

    def script(_facts: Facts) -> "Script[object]":
        yield {"a": Ask(op="run", fields={"argv": ["sleep", "2"]})}
        replies = yield {"a": Ask(op="ping"), "b": Ask(op="ping")}
        return {name: isinstance(reply, Unknown) for name, reply in replies.items()}

    exercise = Exercise(name="long", script=script)
    assert _check(exercise).facts.outcome(exercise) == {"a": False, "b": False}
