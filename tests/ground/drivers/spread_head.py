"""A head that copies a directory to nodes; prints progress and results as JSON lines.

argv: folder, directory on the nodes, [--peers,] nodes… With --peers, nodes pass large files on. It pings over the
same links meanwhile, and prints the slowest reply and its own memory too.
"""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any

from aboard.commands.sync.sync_files import UploadProgress, sync_files
from aboard.commands.train.input_directory import build_sync_directory
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, TransportError
from aboard.transport.node_dialer import DialResult, NodeDialer
from aboard.transport.transport import OnPhase


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def on_progress(progress: UploadProgress) -> None:
    tell(**asdict(progress))


class PingedFleet(NodeDialer):
    """Pings over every link that it returns, like a run's heartbeats."""

    slowest = 0.0

    async def dial(self, node: Node, on_phase: OnPhase = lambda _phase: None) -> DialResult:
        dialled = await super().dial(node, on_phase)
        pinging.add(asyncio.create_task(self.ping(dialled)))
        return dialled

    async def ping(self, dialled: DialResult) -> None:
        with suppress(TransportError):
            while True:
                sent = monotonic()
                await dialled.link.ask("ping", 30)
                self.slowest = max(self.slowest, monotonic() - sent)
                await asyncio.sleep(0.1)


async def main() -> None:
    fleet = PingedFleet()
    try:
        what = await asyncio.to_thread(
            build_sync_directory, Path(sys.argv[1]), hashes=Path("hashes.json"), to=sys.argv[2]
        )
        names = [name for name in sys.argv[3:] if name != "--peers"]
        what = replace(what, peers="--peers" in sys.argv)
        done = await sync_files([Node(name=name) for name in names], [what], fleet, on_progress=on_progress)
    except AboardError as error:
        tell(code=error.code, seen=error.seen, fix=error.fix)
    else:
        nodes = {name: asdict(each) for name, each in done.nodes.items()}
        memory = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        findings = [{"code": each.code, "nodes": each.nodes, "seen": each.seen} for each in done.findings]
        tell(nodes=nodes, findings=findings, seconds=done.seconds, slowest=fleet.slowest, memory=memory)
    finally:
        for task in pinging:
            task.cancel()
        await fleet.close()


pinging: set[asyncio.Task[None]] = set()
asyncio.run(main())
