"""Prepares the next generation of a run: waits for what failed, checks it again, and plans the ranks anew."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from aboard.core.plan.plan import Plan
from aboard.core.run.recovery.recovery_policy import (
    Action,
    Failure,
    Recovery,
    RecoverySettings,
    count_attempts,
    decide_recovery,
)
from aboard.core.text.durations import format_duration
from aboard.diagnoses import AboardError
from aboard.engine.recovery.spare_nodes import CheckNodes, LoadNode, SpareNodes

_LOG = logging.getLogger(__name__)

# How often what is waited for is checked again.
CHECK_SECONDS = 10.0


class PlanNodes(Protocol):
    """Plans a run on these nodes; with `resume`, ranks continue from its newest checkpoint."""

    async def __call__(self, names: Sequence[str], *, resume: bool) -> Plan: ...


class RecoveryFailed(Exception):
    """Nothing more can be done; the message says why."""


class RunRecovery:
    """The failures of a run so far, its spares, and what to do next."""

    def __init__(
        self, settings: RecoverySettings, *, check_nodes: CheckNodes, plan_nodes: PlanNodes, load_node: LoadNode
    ) -> None:
        self.settings = settings
        self.failures: list[Failure] = []
        self.spares = SpareNodes(settings.spares, check_nodes=check_nodes, load_node=load_node)
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
        return decide_recovery(self.failures, self.settings, active, self.spares.ready)

    async def prepare(
        self, decision: Recovery, active: Sequence[str], *, resume: bool, on_change: Callable[[Recovery], None]
    ) -> Plan:
        """The plan of the next generation; raises RecoveryFailed if what is waited for doesn't clear in time.

        `on_change` gets another decision, if spares fail their check.
        """
        await asyncio.gather(asyncio.sleep(decision.pause), self.spares.stop())
        nodes = list(active)
        while decision.action is Action.REPLACE and not await self._check_spares(decision.spares):
            decision = decide_recovery(self.failures, self.settings, active, self.spares.ready)
            _LOG.info(
                "a spare failed its check; instead: %s, %s", decision.action.value, decision.why or decision.doing
            )
            on_change(decision)
        if decision.action is Action.STOP:
            raise RecoveryFailed(decision.why)
        if decision.action is Action.REPLACE:
            self._replace(decision, nodes)
        elif decision.action is Action.WAIT and decision.nodes:
            await self._await_nodes(decision, decision.nodes)
        elif decision.action is Action.SHRINK:
            try:
                await self._await_nodes(decision, decision.nodes)
            except RecoveryFailed:
                nodes = [*(name for name in nodes if name not in decision.nodes), *decision.spares]
                self.spares.remove(decision.spares)
        try:
            return await self._plan_nodes(nodes, resume=resume)
        except AboardError as error:
            raise RecoveryFailed(error.seen) from error

    async def _check_spares(self, names: Sequence[str]) -> bool:
        return all(await asyncio.gather(*map(self.spares.check, names)))

    def _replace(self, decision: Recovery, nodes: list[str]) -> None:
        """Puts each spare in the place of its node, so that the other ranks keep their numbers."""
        for bad, spare in zip(decision.nodes, decision.spares, strict=True):
            nodes[nodes.index(bad)] = spare
        self.spares.remove(decision.spares)

    async def _await_nodes(self, decision: Recovery, nodes: Sequence[str]) -> None:
        """Checks these nodes until nothing blocks them."""
        deadline = monotonic() + decision.wait
        while findings := await self._check_nodes(nodes):
            left = deadline - monotonic()
            _LOG.debug("waiting for %s, %.0f s left: %s", ", ".join(nodes), left, findings[0].seen)
            if left <= 0:
                waited = format_duration(decision.wait)
                raise RecoveryFailed(f"it did not clear within {waited}: {findings[0].seen}")
            await asyncio.sleep(min(CHECK_SECONDS, left))
