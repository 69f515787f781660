"""The record of a run, written by its conductor. Disk errors never raise here: they are counted."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from aboard.core.evidence.snapshot import Snapshot
from aboard.core.run.events import Event
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.record.event_log import EventLog
from aboard.record.json_documents import DocumentWriter, build_findings_document
from aboard.record.lateness_log import LatenessLog
from aboard.record.measurement_log import MeasurementLog, NodeMeasurement
from aboard.record.metrics_log import MetricsLog
from aboard.record.rank_logs.log_writer import LogLimits, LogWriter
from aboard.record.recent_snapshots import RecentSnapshots
from aboard.record.run_directory import PRIVATE, RunDirectory

DEFAULT_LIMITS = LogLimits()


class Record:
    """Everything that a run writes to its run directory."""

    def __init__(self, run: RunDirectory, events: EventLog, samples: MeasurementLog, logs: LogWriter) -> None:
        self.run = run
        self._events = events
        self._samples = samples
        self.metrics = MetricsLog(run.metrics)
        self.lateness = LatenessLog(run.lateness)
        self._logs = logs
        self._script_logs: LogWriter | None = None
        self._documents = DocumentWriter()
        self._snapshots = RecentSnapshots(run, self._documents)

    @classmethod
    def open(cls, run: RunDirectory, *, ranks: int, nodes: int = 1, limits: LogLimits = DEFAULT_LIMITS) -> Self:
        """Opens a record; the expected numbers divide the space for logs and for measurements."""
        logs = LogWriter(run.logs, ranks=ranks, limits=limits)
        return cls(run, EventLog(run.events), MeasurementLog(run.samples, nodes=nodes), logs)

    def event(self, event: Event) -> bool:
        """Records an event, unless its node has used up its space."""
        past = self._events.past_limit[event.node]
        self._events.append(event)
        return self._events.past_limit[event.node] == past

    @property
    def past_limits(self) -> Mapping[str, Mapping[str, int]]:
        """What each node sent beyond its space, by kind."""
        counts = {"events": self._events.past_limit, "measurements": self._samples.past_limit}
        nodes = {node for by_node in counts.values() for node, count in by_node.items() if count}
        return {node: {kind: by_node[node] for kind, by_node in counts.items() if by_node[node]} for node in nodes}

    def samples(self, node: str, at: float, figures: Mapping[str, Any]) -> None:
        self._samples.take(NodeMeasurement(node=node, at=at, figures=figures))

    def add_output(
        self, node: str, rank: int, stream: str, data: bytes, at: float, *, dropped: int = 0, end: bool = False
    ) -> None:
        """Adds a chunk of a rank's output; `at` is the head's corrected time of its first byte."""
        self._logs.take(rank, node, stream, data, at, dropped=dropped, end=end)

    def add_script_output(
        self, node: str, index: int, stream: str, data: bytes, at: float, *, dropped: int = 0, end: bool = False
    ) -> None:
        """Adds a chunk of the output of the script that starts the launchers, on its node with this number."""
        if self._script_logs is None:
            with suppress(OSError):
                self.run.script_logs.mkdir(mode=PRIVATE, exist_ok=True)
            self._script_logs = LogWriter(self.run.script_logs, ranks=1, limits=DEFAULT_LIMITS)
        self._script_logs.take(index, node, stream, data, at, dropped=dropped, end=end)

    def tail(self, rank: int) -> tuple[Untrusted, ...]:
        """The last few lines of a rank, for a live view."""
        return self._logs.tail(rank)

    def clear_tails(self) -> None:
        """Forgets the last lines of all ranks, which have new ones after a restart; the logs keep them."""
        self._logs.clear_tails()

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        self._documents.write(self.run.plan, plan)

    def write_findings(self, findings: Iterable[Finding], *, generation: int = 1) -> None:
        document = [{**each, "generation": generation} for each in build_findings_document(findings)]
        self._documents.write(self.run.findings, document)

    def write_stacks(self, stacks: Mapping[int, str]) -> None:
        self._documents.write(self.run.stacks, {str(rank): text for rank, text in stacks.items()})

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Records a snapshot that led to a verdict; the caller adds the event that refers to it."""
        self._snapshots.add(snapshot)

    def tick(self, now: float) -> None:
        """Call it about once a second with a monotonic clock: writes buffered data to disk."""
        for logs in self._all_logs:
            logs.tick(now)
        self._documents.retry()

    def flush(self) -> None:
        """Writes all complete lines to disk now, such as when a rank has died."""
        for logs in self._all_logs:
            logs.flush()
        self._documents.retry()

    @property
    def _all_logs(self) -> list[LogWriter]:
        return [self._logs] if self._script_logs is None else [self._logs, self._script_logs]

    @property
    def dropped(self) -> Mapping[str, int]:
        """The counts of lost data by kind, without zeros."""
        counts = {
            "events": self._events.dropped,
            "samples": self._samples.dropped + self.lateness.dropped,
            "metrics": self.metrics.dropped,
            "documents": self._documents.waiting,
            "log bytes lost on nodes": sum(logs.lost_on_nodes for logs in self._all_logs),
            "log bytes without room on the head": sum(logs.lost_on_disk for logs in self._all_logs),
            "log bytes past the limits": sum(logs.past_limits for logs in self._all_logs),
        }
        return {kind: count for kind, count in counts.items() if count}

    def close(self) -> None:
        """Writes everything that is buffered; the caller releases the run's lock afterwards."""
        for logs in self._all_logs:
            logs.close()
        for log in (self._samples, self.metrics, self.lateness):
            log.close()
        self._events.close()
        self._documents.retry()
