"""Runs of the real conductor on simulated nodes, with messages about them and metrics of them."""

import os
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from made_events import list_fields

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import LaunchResult, launch
from aboard.engine.monitoring.metrics_file import MetricsFile
from aboard.engine.monitoring.run_notifier import RunNotifier
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport

RANKS = 2
QUICK = Lease(seconds=10.0, grace=0.2, beat=0.5)


class EventList:
    """An observer that keeps the events; `on_event` gets each with its conductor."""

    def __init__(self, on_event: Callable[[Conductor, Event], None] = lambda _conductor, _event: None) -> None:
        self.events: list[Event] = []
        self._on_event = on_event
        self._conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def event(self, event: Event) -> None:
        self.events.append(event)
        if self._conductor is not None:
            self._on_event(self._conductor, event)

    def tick(self, now: float) -> None:
        pass

    def list_data(self, kind: str, name: str) -> list[str]:
        return [list_fields(event)[name] for event in self.events if event.kind == kind]


async def conduct_simulated(
    folder: Path,
    socket: Path,
    nodes: tuple[str, ...],
    faults: Mapping[str, FakeNodeFaults],
    notify: NotifySettings,
    observer: EventList,
    *,
    recovery: RecoverySettings | None = None,
    lease: Lease = QUICK,
    textfile: str = "",
) -> LaunchResult:
    """Launches two ranks on each of these nodes, whose names tell runs of one simulator apart."""
    cluster = Cluster(nodes=tuple(Node(name=name, slots=RANKS) for name in nodes), notify=notify)
    run = Runs(folder).create(datetime.now(UTC), random.SystemRandom())
    record = Record.open(run, ranks=RANKS * len(nodes))
    request = LaunchRequest(program=Program(kind=ProgramKind.SCRIPT, target="train.py"))
    spec = LaunchSpec(cluster=cluster, request=request, lease=lease, recovery=recovery or RecoverySettings())
    try:
        with MetricsFile(textfile, record, observer) as metrics:
            async with RunNotifier(notify, record, metrics, os.environ) as notifier:
                return await launch(
                    spec,
                    record,
                    check_observer=NullCheckObserver(),
                    run_observer=notifier,
                    transport_for=lambda node: SimulatedTransport(
                        socket, faults=faults.get(node.name, FakeNodeFaults())
                    ),
                )
    finally:
        record.close()
