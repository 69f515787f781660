"""Dials the nodes of a launch before anything else: ssh needs longer than the rest of the program needs to load."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from aboard.core.cluster.node import Node
from aboard.transport.node_dialer import NodeDialer

if TYPE_CHECKING:
    from aboard.engine.launch_run import LaunchSpec

RunLaunch = Callable[["LaunchSpec", NodeDialer], Awaitable[int]]


async def dial_and_launch(nodes: Iterable[Node], load: "Callable[[], tuple[LaunchSpec, RunLaunch]]") -> int:
    """Runs a launch over links to these nodes and to those that `load` finds, and returns its exit code.

    `load` parses the arguments and imports the rest of the program, in a thread, while ssh connects and agents start.
    """
    async with NodeDialer() as dialer:
        dialer.begin(nodes)
        spec, run = await asyncio.to_thread(load)
        dialer.begin(spec.cluster)
        return await run(spec, dialer)
