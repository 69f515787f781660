"""A head that spreads a directory; it tells how far each node is and what came of it, one JSON line each.

argv: folder, directory on the nodes, nodes… It pings over the same links meanwhile; it tells the slowest answer
and its own memory too.
"""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any

from aboard.core.node import Node
from aboard.data.store.parcels import parcel
from aboard.diagnoses import AboardError, WireError
from aboard.flows.spread import Progress, spread
from aboard.wires.fleet import Dialled, Fleet


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def on_progress(progress: Progress) -> None:
    tell(**asdict(progress))


class PingedFleet(Fleet):
    """Pings over every link that it hands out, as a run's beats go over one."""

    slowest = 0.0

    async def dial(self, node: Node) -> Dialled:
        dialled = await super().dial(node)
        pinging.add(asyncio.create_task(self.ping(dialled)))
        return dialled

    async def ping(self, dialled: Dialled) -> None:
        with suppress(WireError):
            while True:
                sent = monotonic()
                await dialled.link.ask("ping", 30)
                self.slowest = max(self.slowest, monotonic() - sent)
                await asyncio.sleep(0.1)


async def main() -> None:
    fleet = PingedFleet()
    try:
        what = await asyncio.to_thread(parcel, Path(sys.argv[1]), hashes=Path("hashes.json"), to=sys.argv[2])
        done = await spread([Node(name=name) for name in sys.argv[3:]], [what], fleet, on_progress=on_progress)
    except AboardError as error:
        tell(code=error.code, seen=error.seen, fix=error.fix)
    else:
        nodes = {name: asdict(each) for name, each in done.nodes.items()}
        memory = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        tell(nodes=nodes, seconds=done.seconds, slowest=fleet.slowest, memory=memory)
    finally:
        for task in pinging:
            task.cancel()
        await fleet.close()


pinging: set[asyncio.Task[None]] = set()
asyncio.run(main())
