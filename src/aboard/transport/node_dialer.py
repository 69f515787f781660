"""Connects to many nodes: limits handshakes but not sessions, and retries a handshake that sshd drops."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from random import uniform
from time import monotonic
from typing import Self

from aboard.core.cluster.node import Node, TransportKind
from aboard.diagnoses import TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass
from aboard.transport.agent_link import AgentLink, open_link
from aboard.transport.local import LocalTransport
from aboard.transport.ssh import SshTransport
from aboard.transport.transport import OnPhase, Transport

# Limits concurrent handshakes, not sessions: a window over sessions would leave the node after the last
# place waiting for ever, since a training command doesn't end.
HANDSHAKES = 64
DIAL_SECONDS = 20.0
TRIES = 6
# An unused link is pinged this often: its agent exits otherwise. A kept one must respond before it is used again.
PING_SECONDS = 2.0
PONG_SECONDS = 3.0
# The node itself may be fine.
_LOG = logging.getLogger(__name__)
_RETRIED = (UnreachableReason.DROPPED, UnreachableReason.STEP_ABORTED)

TransportFor = Callable[[Node], Transport]


def choose_transport(node: Node) -> Transport:
    match node.transport:
        case TransportKind.LOCAL:
            return LocalTransport()
        case TransportKind.SLURM:
            from aboard.transport.slurm.slurm_transport import SlurmTransport  # noqa: PLC0415 - only inside a job

            return SlurmTransport()
        case TransportKind.SSH:
            return SshTransport()


def choose_bulk_transport(node: Node) -> Transport:
    """For links that carry many files."""
    return SshTransport(bulk=True) if node.transport is TransportKind.SSH else choose_transport(node)


def _get_login(node: Node) -> tuple[object, ...]:
    return node.transport, node.target, node.user, node.port, node.python


@dataclass(frozen=True, kw_only=True)
class DialResult:
    """A link, the seconds that it took, and how many handshakes were dropped."""

    link: AgentLink
    seconds: float
    drops: int


class NodeDialer:
    """Opens links to nodes; `transport_for` chooses the transport of each."""

    def __init__(
        self,
        transport_for: TransportFor = choose_transport,
        *,
        handshakes: int = HANDSHAKES,
        seconds: float = DIAL_SECONDS,
    ) -> None:
        self._transport_for = transport_for
        self._handshakes = asyncio.Semaphore(handshakes)
        self._seconds = seconds
        # Who is told the phases of a node's dials, which may have begun before.
        self._watching: dict[str, OnPhase] = {}
        self._spare_links: dict[str, DialResult] = {}
        # Second links to a node; closed at the end.
        self._surplus: list[DialResult] = []
        self._started: dict[str, list[tuple[Node, asyncio.Task[DialResult]]]] = {}
        self._pinging: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def begin(self, nodes: Iterable[Node], links: int = 1) -> None:
        """Starts dialling nodes that will be needed, so many links to each, while the caller does something else."""
        for node in nodes:
            started = self._started.setdefault(node.name, [])
            while len(started) < links:
                started.append((node, asyncio.create_task(self._dial(node))))
        self._keep_alive()

    def keep(self, links: "dict[str, DialResult]") -> None:
        """Keeps open links, by node: the next dial of each reuses it, without another handshake."""
        self._surplus += [self._spare_links[name] for name in links if name in self._spare_links]
        self._spare_links.update(links)
        links.clear()
        self._keep_alive()

    async def close(self) -> None:
        """Closes links that were started or kept but never used."""
        if self._pinging is not None:
            self._pinging.cancel()
            self._pinging = None
        tasks, self._started = [task for each in self._started.values() for _node, task in each], {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        results, self._spare_links, self._surplus = [*self._spare_links.values(), *self._surplus], {}, []
        results += [task.result() for task in tasks if _is_open(task)]
        await asyncio.gather(*(dialled.link.close() for dialled in results))

    async def dial(self, node: Node, on_phase: OnPhase = lambda _phase: None) -> DialResult:
        """Opens a link to one node; raises Unreachable if that fails within the time."""
        self._watching[node.name] = on_phase
        ready = self._spare_links.pop(node.name, None)
        if ready is not None and await _responds(ready.link):
            return ready
        while started := self._started.get(node.name):
            early, task = started.pop(0)
            if _get_login(early) == _get_login(node):
                dialled = await task
                if dialled.link.lost is None:
                    return dialled
                await dialled.link.close()
                continue
            # It was started with other login settings.
            task.cancel()
            await asyncio.wait([task])
            if _is_open(task):
                await task.result().link.close()
        return await self._dial(node)

    def _report_phase(self, node: str, phase: str) -> None:
        if node in self._watching:
            self._watching[node](phase)

    def _keep_alive(self) -> None:
        if self._pinging is None:
            self._pinging = asyncio.create_task(self._ping_unused_links())

    async def _ping_unused_links(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            started = [task.result() for each in self._started.values() for _node, task in each if _is_open(task)]
            for dialled in (*self._spare_links.values(), *started):
                dialled.link.tell("ping")

    async def _dial(self, node: Node) -> DialResult:
        for drops in range(TRIES):
            async with self._handshakes:
                # Time in the queue does not count as the node's.
                now = monotonic()
                try:
                    report = partial(self._report_phase, node.name)
                    link = await open_link(node, self._transport_for(node), self._seconds, report)
                except Unreachable as error:
                    _LOG.info("no link to %s (try %d): %s", node.name, drops + 1, error.seen)
                    if error.reason not in _RETRIED or drops == TRIES - 1:
                        raise
                else:
                    _LOG.debug("link to %s open after %.2f s", node.name, monotonic() - now)
                    return DialResult(link=link, seconds=monotonic() - now, drops=drops)
            # sshd drops at random above MaxStartups (sshd_config(5)); spread the next tries over time.
            self._report_phase(node.name, "dropped, trying again")
            await asyncio.sleep(uniform(0.5, 1.0) * 0.25 * 2**drops)  # noqa: S311 - jitter, no secret
        raise AssertionError("the last try returns or raises")


def _is_open(task: "asyncio.Task[DialResult]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _responds(link: AgentLink) -> bool:
    """Whether a kept link still works; closes it if it doesn't."""
    try:
        await link.ask("ping", PONG_SECONDS)
    except TransportError:
        await link.close()
        return False
    return True
