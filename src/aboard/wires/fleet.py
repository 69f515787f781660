"""Dials many nodes: handshakes are bounded, sessions are not, and a handshake that sshd drops is tried again."""

import asyncio
from collections.abc import Callable, Iterable
from random import uniform
from time import monotonic

from aboard.core.node import Node
from aboard.diagnoses import Unreachable
from aboard.diagnoses.reason import Reason
from aboard.lazy import dataclass
from aboard.wires.link import Link, open_link
from aboard.wires.local import LocalWire
from aboard.wires.ssh import SshWire
from aboard.wires.wire import Wire

# Bounds the handshakes under way, not the sessions: a window over sessions would leave the node after the last
# place waiting for ever, since a training command doesn't end.
HANDSHAKES = 64
DIAL_SECONDS = 20.0
TRIES = 6

OnDial = Callable[[Node, str], None]
WireOf = Callable[[Node], Wire]


def usual_wire(node: Node) -> Wire:
    return LocalWire() if node.local else SshWire()


def _login(node: Node) -> tuple[object, ...]:
    return node.local, node.target, node.user, node.port, node.python


@dataclass(frozen=True, kw_only=True)
class Dialled:
    """A link, and what it took to get it."""

    link: Link
    seconds: float
    drops: int


class Fleet:
    """Hands out links; `wire_of` says how each node is reached."""

    def __init__(
        self,
        wire_of: WireOf = usual_wire,
        *,
        handshakes: int = HANDSHAKES,
        seconds: float = DIAL_SECONDS,
        on_phase: OnDial = lambda _node, _phase: None,
    ) -> None:
        self._wire_of = wire_of
        self._handshakes = asyncio.Semaphore(handshakes)
        self._seconds = seconds
        self.on_phase = on_phase
        self._kept: dict[str, Dialled] = {}
        self._begun: dict[str, tuple[Node, asyncio.Task[Dialled]]] = {}

    def begin(self, nodes: Iterable[Node]) -> None:
        """Dials nodes that will be asked for: handshakes go on while the caller does something else."""
        for node in nodes:
            if node.name not in self._begun:
                self._begun[node.name] = (node, asyncio.create_task(self._dial(node)))

    def keep(self, links: "dict[str, Dialled]") -> None:
        """Takes links that are open already, by node: the next dial of each gets it, without another handshake."""
        self._kept.update(links)
        links.clear()

    async def close(self) -> None:
        """Closes the links that were begun or kept and that nobody asked for."""
        begun, self._begun = [task for _node, task in self._begun.values()], {}
        for task in begun:
            task.cancel()
        if begun:
            await asyncio.wait(begun)
        kept, self._kept = [*self._kept.values()], {}
        kept += [task.result() for task in begun if not task.cancelled() and task.exception() is None]
        await asyncio.gather(*(dialled.link.close() for dialled in kept))

    async def dial(self, node: Node) -> Dialled:
        """Opens a link to one node; raises Unreachable when it can't be had within the time."""
        kept = self._kept.pop(node.name, None)
        if kept is not None and kept.link.lost is None:
            return kept
        early, begun = self._begun.pop(node.name, (node, None))
        if begun is not None and _login(early) == _login(node):
            return await begun
        if begun is not None:
            # What was known of it then has turned out to be wrong.
            begun.cancel()
            await asyncio.wait([begun])
            if not begun.cancelled() and begun.exception() is None:
                await begun.result().link.close()
        return await self._dial(node)

    async def _dial(self, node: Node) -> Dialled:
        for drops in range(TRIES):
            async with self._handshakes:
                # Time in the queue is ours, not the node's.
                now = monotonic()
                try:
                    link = await open_link(
                        node, self._wire_of(node), self._seconds, lambda phase: self.on_phase(node, phase)
                    )
                except Unreachable as error:
                    if error.reason is not Reason.DROPPED or drops == TRIES - 1:
                        raise
                else:
                    return Dialled(link=link, seconds=monotonic() - now, drops=drops)
            # sshd drops at random above MaxStartups (sshd_config(5)); spread the next tries over time.
            self.on_phase(node, "dropped, trying again")
            await asyncio.sleep(uniform(0.5, 1.0) * 0.25 * 2**drops)  # noqa: S311 - jitter, no secret
        raise AssertionError("the last try returns or raises")
