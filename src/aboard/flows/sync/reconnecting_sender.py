"""A file sender that reconnects when the link to its node is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aboard.core.cluster.file_transfer_errors import build_lost_error
from aboard.core.cluster.node import Node
from aboard.diagnoses import ProtocolError, TransportError, Unreachable
from aboard.transport.node_dialer import DialResult, NodeDialer
from aboard.transport.tree_sender import TreeSender

# Consecutive losses without any byte sent in between.
MAX_LOSSES = 3
REDIAL_SECONDS = 1.0

T = TypeVar("T")


class ReconnectingSender:
    """Dials at the first use; `sent` counts the bytes that the node acknowledged, over all links."""

    def __init__(self, node: Node, dialer: NodeDialer) -> None:
        self.node = node
        self.sent = 0
        self._dialer = dialer
        self._dialled: DialResult | None = None
        self._sender: TreeSender | None = None

    async def run(self, work: Callable[[TreeSender], Awaitable[T]]) -> T:
        """Runs `work`; if the node is lost meanwhile, reconnects and runs it again, so it may run twice."""
        losses, sent = 0, self.sent
        while True:
            first = self._dialled is None
            try:
                return await work(await self._get_sender())
            except (Unreachable, ProtocolError) as error:
                if first and self._dialled is None:
                    # The node was never reached: the error has its own explanation.
                    raise
                await self.close()
                losses = 1 if self.sent > sent else losses + 1
                sent = self.sent
                if losses >= MAX_LOSSES:
                    raise build_lost_error(self.node.name, error.seen, losses) from error
                await asyncio.sleep(REDIAL_SECONDS)

    async def leave(self) -> DialResult | None:
        """Releases the link for further use; a link lost by now is no error, since all files are there."""
        sender, self._sender = self._sender, None
        try:
            if sender is None:
                return None
            await sender.leave()
        except TransportError:
            return None
        return self._dialled

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _get_sender(self) -> TreeSender:
        if self._sender is None:
            self._dialled = await self._dialer.dial(self.node)
            self._sender = TreeSender(self._dialled.link)
        return self._sender
