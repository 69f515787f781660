"""Agents on this machine, each with a home of its own: nodes without ssh."""

import sys
from pathlib import Path

from aboard.core.cluster.node import Node
from aboard.transport import agent_bootstrap
from aboard.transport.local import LocalTransport
from aboard.transport.subprocess_stream import start_program
from aboard.transport.transport import ByteStream, OnPhase


class HomeTransport(LocalTransport):
    """An agent on this machine whose home is a directory of the node's own."""

    def __init__(self, homes: Path) -> None:
        self._homes = homes

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("starting")
        home = self._homes / node.name
        home.mkdir(parents=True, exist_ok=True)
        argv = ("env", "-u", "XDG_CACHE_HOME", f"HOME={home}", *agent_bootstrap.build_argv(sys.executable))
        return await start_program(argv, lambda _line: None)
