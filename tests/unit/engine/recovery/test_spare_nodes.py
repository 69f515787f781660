"""Spares are kept ready while a run goes on, and one that can't take over is left out."""

import asyncio
from collections.abc import Sequence

import pytest

from aboard.core.cluster.node import Node
from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.run.recovery.recovery_policy import Action, Failure, Recovery, RecoverySettings
from aboard.diagnoses import NO_FIX, AboardError, Finding
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.files import file_sync
from aboard.diagnoses.runs import death
from aboard.engine.recovery import spare_nodes
from aboard.engine.recovery.recover_run import RecoveryFailed, RunRecovery
from aboard.engine.recovery.spare_nodes import SpareNodes
from aboard.trainer.diagnoses import training

DOWN = death.NODE_GONE.finding(nodes=("n3",), seen="n3 does not answer", fix=NO_FIX)
ACTIVE = ("n1", "n2")


class Planned(Exception):
    """Raised in place of a plan, with its nodes."""


class Nodes:
    """The nodes of a run: which are down, what was sent to them, and what was reported."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.full: set[str] = set()
        self.refused = ""
        self.loaded: list[str] = []
        self.changes: list[tuple[str, str]] = []
        self.decisions: list[Recovery] = []

    async def check(self, names: Sequence[str]) -> list[Finding]:
        return [DOWN] if self.down & set(names) else []

    async def load(self, name: str) -> NodePlan:
        if name in self.full:
            raise AboardError(file_sync.DISK_FULL, f"{name} has no space", fix=NO_FIX)
        self.loaded.append(name)
        return NodePlan(node=Node(name=name), starts=())

    async def plan(self, names: Sequence[str], *, resume: bool) -> Plan:
        if self.refused:
            raise AboardError(training.MEMORY, self.refused, fix=NO_FIX)
        raise Planned(*names)

    def recover(self, settings: RecoverySettings) -> tuple[str, ...] | str:
        """The nodes of the generation after one that n2 ended, or why there is none."""

        async def run() -> None:
            recovery = RunRecovery(settings, check_nodes=self.check, plan_nodes=self.plan, load_node=self.load)
            recovery.spares.on_change = lambda name, why: self.changes.append((name, why))
            decision = recovery.decide(Failure(kind=FailureClass.NODE, code="x", nodes=("n2",)), ACTIVE)
            await recovery.prepare(decision, ACTIVE, resume=False, on_change=self.decisions.append)

        try:
            asyncio.run(run())
        except Planned as planned:
            return planned.args
        except RecoveryFailed as failed:
            return str(failed)
        raise AssertionError


def test_the_next_spare_takes_over_where_the_first_fails_its_check() -> None:
    """The other decision is reported, and the spare named."""
    nodes = Nodes("n3")
    assert nodes.recover(RecoverySettings(restarts=3, spares=("n3", "n4"))) == ("n1", "n4")
    assert nodes.changes == [("n3", "n3 does not answer")]
    assert [decision.spares for decision in nodes.decisions] == [("n4",)]


def test_without_a_sound_spare_the_table_decides_again() -> None:
    """As if there had been none: the node is waited for, or the run gets smaller if that was asked for."""
    nodes = Nodes("n2", "n3")
    assert nodes.recover(RecoverySettings(restarts=3, spares=("n3",), wait=0)) == (
        "it did not clear within 0.0 s: n3 does not answer"
    )
    assert [decision.action for decision in nodes.decisions] == [Action.WAIT]
    nodes = Nodes("n2", "n3")
    assert nodes.recover(RecoverySettings(restarts=3, spares=("n3",), wait=0, min_nodes=1)) == ("n1",)
    assert [decision.action for decision in nodes.decisions] == [Action.SHRINK]


def test_a_smaller_world_that_does_not_fit_ends_the_run() -> None:
    """With the reason of the refusal, and never on nodes that nobody checked."""
    nodes = Nodes("n2")
    nodes.refused = "a rank needs 96 GB"
    assert nodes.recover(RecoverySettings(restarts=3, wait=0, min_nodes=1)) == "a rank needs 96 GB"


def test_spares_are_loaded_once_and_checked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spare that fails is reported once and not ready; it returns when it passes."""
    monkeypatch.setattr(spare_nodes, "CHECK_SECONDS", 0.0)
    nodes, checked = Nodes(), asyncio.Event()
    nodes.full.add("n4")

    async def check(names: Sequence[str]) -> list[Finding]:
        checked.set()
        return await nodes.check(names)

    async def run() -> None:
        spares = SpareNodes(("n3", "n4"), check_nodes=check, load_node=nodes.load)
        spares.on_change = lambda name, why: nodes.changes.append((name, why))

        async def go_on() -> None:
            for _round in range(2):
                checked.clear()
                await checked.wait()
            await asyncio.sleep(0)

        spares.start()
        await go_on()
        assert (spares.ready, nodes.loaded) == (["n3"], ["n3"])
        assert [part.node.name for part in spares.parts] == ["n3"]
        nodes.down.add("n3")
        await go_on()
        assert (spares.ready, spares.parts) == ([], [])
        nodes.down.clear()
        nodes.full.clear()
        await go_on()
        assert spares.ready == ["n3", "n4"]
        await spares.stop()

    asyncio.run(run())
    assert nodes.loaded == ["n3", "n4"]
    assert nodes.changes[:2] == [("n4", "n4 has no space"), ("n3", "n3 does not answer")]
    assert sorted(nodes.changes[2:]) == [("n3", ""), ("n4", "")]
