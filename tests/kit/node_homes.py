"""Agents on this machine, each with a home of its own: nodes without ssh, and one that lies."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.commands.sync.trees.sync_trees import sync_trees
from aboard.core.cluster.file_sync import NodeTreeResult
from aboard.core.cluster.node import Node
from aboard.transport import agent_bootstrap
from aboard.transport.local import LocalTransport
from aboard.transport.node_dialer import NodeDialer
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


def run_sync(
    homes: Path, trees: list[SourceTree], *names: str, delete: bool = False, dry: bool = False
) -> Mapping[str, NodeTreeResult]:
    """Syncs trees to nodes whose homes are directories in `homes`."""

    async def main() -> Mapping[str, NodeTreeResult]:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        nodes = [Node(name=name) for name in names]
        try:
            return await sync_trees(nodes, trees, dialer, hashes=homes / "hashes.json", delete=delete, dry=dry)
        finally:
            await dialer.close()

    return asyncio.run(main())


# Says hello as an agent does; then it answers pings, and everything else with its argument, if that is anything.
LIAR = r"""
import ast, json, re, sys
into, out = sys.stdin.buffer, sys.stdout.buffer
into.read(int(into.readline()))
into.read(int(into.readline()))
marker = ast.literal_eval(re.search(rb"main\((b'.*?'),", into.readline())[1].decode())
def say(message):
    body = json.dumps(message).encode()
    out.write(len(body).to_bytes(4, "big") + body)
    out.flush()
out.write(marker)
say({"hello": 1})
while head := into.read(4):
    asked = json.loads(into.read(int.from_bytes(head, "big")))
    answer = {} if asked["op"] == "ping" else json.loads(sys.argv[1])
    if answer is not None:
        say({"re": asked["id"], **answer})
"""


class LyingTransport(LocalTransport):
    """A node that answers whatever it likes."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self._argv = (sys.executable, "-ISc", LIAR, json.dumps(answer))

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        return await start_program(self._argv, lambda _line: None)
