"""Keeps a file channel to one node, reconnecting when the link is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from aboard.core.cluster.file_transfer_errors import build_lost_error
from aboard.core.cluster.node import Node
from aboard.diagnoses import ProtocolError, TransportError, Unreachable
from aboard.transport.agent_link import AgentLink
from aboard.transport.files.file_channel import FileChannel
from aboard.transport.node_dialer import DialResult, NodeDialer

# Consecutive losses without any byte in between.
MAX_LOSSES = 3
REDIAL_SECONDS = 1.0

C = TypeVar("C", bound=FileChannel)
T = TypeVar("T")


class ReconnectingChannel(Generic[C]):
    """Opens its channel at the first use; `transferred` is the caller's count of bytes, over all links."""

    def __init__(self, node: Node, dialer: NodeDialer, open_channel: Callable[[AgentLink], C]) -> None:
        self.transferred = 0
        self._node = node
        self._dialer = dialer
        self._open_channel = open_channel
        self._dialled: DialResult | None = None
        self._channel: C | None = None

    async def run(self, work: Callable[[C], Awaitable[T]]) -> T:
        """Runs `work`; if the node is lost meanwhile, reconnects and runs it again, so it may run twice."""
        losses, before = 0, self.transferred
        while True:
            first = self._dialled is None
            try:
                return await work(await self._get_channel())
            except (Unreachable, ProtocolError) as error:
                if first and self._dialled is None:
                    # The node was never reached: the error has its own explanation.
                    raise
                await self.close()
                losses = 1 if self.transferred > before else losses + 1
                before = self.transferred
                if losses >= MAX_LOSSES:
                    raise build_lost_error(self._node.name, error.seen, losses) from error
                await asyncio.sleep(REDIAL_SECONDS)

    async def leave(self) -> None:
        """Gives the link back to the dialer; a link lost by now is no error, since all files are there."""
        channel, self._channel = self._channel, None
        if channel is None or self._dialled is None:
            return
        try:
            await channel.leave()
        except TransportError:
            await channel.close()
        else:
            self._dialer.keep({self._node.name: self._dialled})

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _get_channel(self) -> C:
        if self._channel is None:
            self._dialled = await self._dialer.dial(self._node)
            self._channel = self._open_channel(self._dialled.link)
        return self._channel
