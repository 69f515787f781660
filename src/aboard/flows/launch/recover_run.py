"""Prepares the next generation of a run: waits for what failed, checks it again, and plans the ranks anew."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Protocol

from aboard.core.cluster.node_sets import fold_names
from aboard.core.plan.plan import Plan
from aboard.core.run.recovery_policy import Action, Failure, Recovery, RecoverySettings, count_attempts, decide_recovery
from aboard.core.text.durations import format_duration
from aboard.diagnoses import AboardError, Finding

# How often what is waited for is checked again.
CHECK_SECONDS = 10.0

# The blocking findings of a quick check of these nodes.
CheckNodes = Callable[[Sequence[str]], Awaitable[Sequence[Finding]]]


class PlanNodes(Protocol):
    """Plans a run on these nodes; with `resume`, ranks continue from its newest checkpoint."""

    async def __call__(self, names: Sequence[str], *, resume: bool) -> Plan: ...


class RecoveryFailed(Exception):
    """Nothing more can be done; the message says why."""


class RunRecovery:
    """The failures of a run so far, its spares, and what to do next."""

    def __init__(self, settings: RecoverySettings, *, check_nodes: CheckNodes, plan_nodes: PlanNodes) -> None:
        self.settings = settings
        self.failures: list[Failure] = []
        self._spares = list(settings.spares)
        self._check_nodes = check_nodes
        self._plan_nodes = plan_nodes

    @property
    def restarts(self) -> int:
        return sum(not failure.own_lease for failure in self.failures)

    @property
    def attempts(self) -> int:
        """The number of the last generation that the budget allows now."""
        return count_attempts(self.failures, self.settings)

    def decide(self, failure: Failure, active: Sequence[str]) -> Recovery:
        self.failures.append(failure)
        return decide_recovery(self.failures, self.settings, active, self._spares)

    async def prepare(self, decision: Recovery, active: Sequence[str], *, resume: bool) -> Plan:
        """The plan of the next generation; raises RecoveryFailed if what is waited for doesn't clear in time."""
        await asyncio.sleep(decision.pause)
        nodes = list(active)
        if decision.action is Action.REPLACE:
            nodes = await self._replace(decision, nodes)
        elif decision.action is Action.WAIT and decision.nodes:
            await self._await_nodes(decision, decision.nodes)
        elif decision.action is Action.SHRINK:
            try:
                await self._await_nodes(decision, decision.nodes)
            except RecoveryFailed:
                nodes = [*(name for name in nodes if name not in decision.nodes), *decision.spares]
                self._spares = []
        try:
            return await self._plan_nodes(nodes, resume=resume)
        except AboardError as error:
            raise RecoveryFailed(error.seen) from error

    async def _replace(self, decision: Recovery, nodes: list[str]) -> list[str]:
        """Puts each spare in the place of its node, so that the other ranks keep their numbers."""
        for bad, spare in zip(decision.nodes, decision.spares, strict=True):
            self._spares.remove(spare)
            nodes[nodes.index(bad)] = spare
        findings = await self._check_nodes(decision.spares)
        if findings:
            # The run ends: another spare, if there is one, is not tried.
            raise RecoveryFailed(f"{fold_names(decision.spares)} can't take over: {findings[0].seen}")
        return nodes

    async def _await_nodes(self, decision: Recovery, nodes: Sequence[str]) -> None:
        """Checks these nodes until nothing blocks them."""
        deadline = monotonic() + decision.wait
        while findings := await self._check_nodes(nodes):
            left = deadline - monotonic()
            if left <= 0:
                waited = format_duration(decision.wait)
                raise RecoveryFailed(f"it did not clear within {waited}: {findings[0].seen}")
            await asyncio.sleep(min(CHECK_SECONDS, left))
