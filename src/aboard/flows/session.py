"""One launch as a session: its record, its claim on the run, its socket and its signals, all gone at its end."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from aboard.core.cluster import Cluster
from aboard.core.lease import Lease
from aboard.core.plan import Plan
from aboard.core.request import Request
from aboard.flows.check import Report
from aboard.flows.conductor import Conductor, Viewer
from aboard.flows.control import served
from aboard.flows.launch import Cargo, Launched, Look, launch
from aboard.flows.watcher import Watcher
from aboard.lazy import dataclass
from aboard.record.places import RunDirectory
from aboard.record.record import Record
from aboard.wires.fleet import Fleet

# What a node that says nothing of its slots may have, for the shares of the room for logs.
USUAL_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that a launch needs to know. `told` says how a plan is written down: without its secrets."""

    cluster: Cluster
    request: Request
    look: Look
    lease: Lease
    run: RunDirectory
    told: Callable[[Plan], Any]
    cargo: Cargo | None = None


async def session(
    order: Order,
    *,
    watcher: Watcher,
    viewer: Viewer,
    fleet: Fleet | None = None,
    on_look: Callable[[Report], None] = lambda _report: None,
) -> tuple[Launched, dict[str, int]]:
    """The launch and what its record had to drop. SIGINT, SIGTERM and SIGHUP end it as Ctrl-C does."""
    claim = order.run.claim()
    record = Record.open(order.run, ranks=_most_ranks(order))
    try:
        async with AsyncExitStack() as stack:
            stop = _Stop()
            stop.listen()
            answering: list[asyncio.Task[Any]] = []

            def began(conductor: Conductor) -> None:
                stop.conductor = conductor
                record.write_plan(order.told(conductor.plan))
                answering.append(asyncio.create_task(stack.enter_async_context(served(order.run, conductor))))

            launched = await launch(
                order.cluster,
                order.request,
                order.look,
                record,
                watcher=watcher,
                viewer=viewer,
                lease=order.lease,
                fleet=fleet,
                cargo=order.cargo,
                on_look=on_look,
                on_conductor=began,
            )
            await asyncio.gather(*answering)
            if stop.conductor is not None:
                # With the port that it had in the end.
                record.write_plan(order.told(stop.conductor.plan))
        if launched.outcome is not None:
            record.write_findings(launched.outcome.findings)
        return launched, dict(record.dropped)
    finally:
        record.close()
        claim.release()


class _Stop:
    """Before there is a conductor, a signal ends the look; after, it is the conductor's to end gently, then at once."""

    def __init__(self) -> None:
        self.conductor: Conductor | None = None
        self._task = asyncio.current_task()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._got, number.name)

    def _got(self, name: str) -> None:
        if self.conductor is not None:
            self.conductor.stop(f"it got a {name}")
        elif self._task is not None:
            self._task.cancel()


def _most_ranks(order: Order) -> int:
    return sum(order.request.ranks or node.slots or USUAL_SLOTS for node in order.cluster)
