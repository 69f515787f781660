"""Exercises: rounds go out to the right nodes, replies come back into the script."""

import asyncio

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.engine.check import run_multi_node_probe
from aboard.engine.check.check_cluster import CheckReport, check_cluster
from aboard.transport import agent_link

CLUSTER = Cluster(nodes=(Node(name="a", transport=TransportKind.LOCAL), Node(name="b", transport=TransportKind.LOCAL)))


def _check(probe: "MultiNodeProbe[object]") -> CheckReport:
    subject = Subject(name="x", title="", probes=(), rules=(), multi_node_probes=(probe,))
    return asyncio.run(check_cluster(CLUSTER, (subject,)))


def test_rounds_follow_each_other() -> None:
    """A script sees each round's replies, by node, before it says the next one."""

    def script(facts: Facts) -> "Script[object]":
        first = yield {
            node.name: ProbeRequest(op="run", fields={"argv": ["echo", node.name]}) for node in facts.list_reached()
        }
        said = {name: reply["stdout"] for name, reply in first.items() if not isinstance(reply, Unknown)}
        second = yield {"b": ProbeRequest(op="run", fields={"argv": ["echo", said["a"].strip() + "!"]})}
        reply = second["b"]
        return None if isinstance(reply, Unknown) else reply["stdout"]

    probe = MultiNodeProbe(name="echo", script=script)
    assert probe.outcome(_check(probe).facts) == "a!\n"


def test_a_node_that_cannot_is_an_unknown() -> None:
    """An op that a node refuses, or a node that isn't there, is an Unknown in the replies."""

    def script(_facts: Facts) -> "Script[object]":
        replies = yield {"a": ProbeRequest(op="no-such-op"), "nobody": ProbeRequest(op="ping")}
        return {name: isinstance(reply, Unknown) for name, reply in replies.items()}

    probe = MultiNodeProbe(name="refused", script=script)
    assert probe.outcome(_check(probe).facts) == {"a": True, "nobody": True}


def test_a_script_that_stumbles_is_an_unknown() -> None:
    """A reply that a script never saw makes its outcome unknown, and the check goes on."""

    def script(_facts: Facts) -> "Script[object]":
        replies = yield {"a": ProbeRequest(op="ping")}
        return replies["a"]["no such field"]  # type: ignore[index] # the mistake that this is about

    probe = MultiNodeProbe(name="stumbles", script=script)
    outcome = probe.outcome(_check(probe).facts)
    assert isinstance(outcome, Unknown)
    assert "KeyError" in outcome.why


@pytest.mark.ci
def test_a_long_round_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents end themselves when the head says nothing; while a round lasts it does, also to who isn't asked."""
    monkeypatch.setattr(agent_link, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(run_multi_node_probe, "BEAT_SECONDS", 0.2)

    def script(_facts: Facts) -> "Script[object]":
        yield {"a": ProbeRequest(op="run", fields={"argv": ["sleep", "2"]})}
        replies = yield {"a": ProbeRequest(op="ping"), "b": ProbeRequest(op="ping")}
        return {name: isinstance(reply, Unknown) for name, reply in replies.items()}

    probe = MultiNodeProbe(name="long", script=script)
    assert probe.outcome(_check(probe).facts) == {"a": False, "b": False}
