"""One launch as a session: its record, its claim on the run, its socket and its signals, all gone at its end."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import Plan
from aboard.core.run.lease import Lease
from aboard.flows.check.check_cluster import CheckReport
from aboard.flows.check.check_observer import CheckObserver
from aboard.flows.launch.conductor import Conductor, RunObserver
from aboard.flows.launch.control_socket import serve_control
from aboard.flows.launch.launch_run import LaunchResult, Payload, Preflight, launch
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.transport.node_dialer import NodeDialer

# What a node that says nothing of its slots may have, for the shares of the room for logs.
USUAL_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """All that a launch needs to know. `told` says how a plan is written down: without its secrets."""

    cluster: Cluster
    request: LaunchRequest
    look: Preflight
    lease: Lease
    run: RunDirectory
    told: Callable[[Plan], Any]
    cargo: Payload | None = None


async def run_launch_session(
    spec: LaunchSpec,
    *,
    watcher: CheckObserver,
    viewer: RunObserver,
    fleet: NodeDialer | None = None,
    on_look: Callable[[CheckReport], None] = lambda _report: None,
) -> tuple[LaunchResult, dict[str, int]]:
    """The launch and what its record had to drop. SIGINT, SIGTERM and SIGHUP end it as Ctrl-C does."""
    claim = spec.run.claim()
    record = Record.open(spec.run, ranks=_estimate_ranks(spec))
    try:
        async with AsyncExitStack() as stack:
            stop = _SignalHandler()
            stop.listen()
            answering: list[asyncio.Task[Any]] = []

            def began(conductor: Conductor) -> None:
                stop.conductor = conductor
                record.write_plan(spec.told(conductor.plan))
                answering.append(asyncio.create_task(stack.enter_async_context(serve_control(spec.run, conductor))))

            result = await launch(
                spec.cluster,
                spec.request,
                spec.look,
                record,
                watcher=watcher,
                viewer=viewer,
                lease=spec.lease,
                fleet=fleet,
                cargo=spec.cargo,
                on_look=on_look,
                on_conductor=began,
            )
            await asyncio.gather(*answering)
            if stop.conductor is not None:
                # With the port that it had in the end.
                record.write_plan(spec.told(stop.conductor.plan))
        if result.outcome is not None:
            record.write_findings(result.outcome.findings)
        return result, dict(record.dropped)
    finally:
        record.close()
        claim.release()


class _SignalHandler:
    """Before there is a conductor, a signal ends the look; after, it is the conductor's to end gently, then at once."""

    def __init__(self) -> None:
        self.conductor: Conductor | None = None
        self._task = asyncio.current_task()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_signal, number.name)

    def _handle_signal(self, name: str) -> None:
        if self.conductor is not None:
            self.conductor.stop(f"aboard received {name}")
        elif self._task is not None:
            self._task.cancel()


def _estimate_ranks(spec: LaunchSpec) -> int:
    return sum(spec.request.ranks or node.slots or USUAL_SLOTS for node in spec.cluster)
