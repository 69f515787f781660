"""What nodes send and the conductor notes: folded into the run's state, recorded, and shown."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import time
from typing import Any

from aboard.core.evidence.run_evidence import TAIL_BYTES, decode_tail
from aboard.core.plan.plan import Plan
from aboard.core.run import event_kinds as kinds
from aboard.core.run.end_decision import STOPPED_SECONDS
from aboard.core.run.events import METRICS_STREAM, Event, Measurement
from aboard.core.run.lateness import WINDOW_SECONDS, LatenessWindow
from aboard.core.run.lateness_meter import LatenessMeter
from aboard.core.run.run_state import Run
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.loss.nonfinite_loss import is_suspicious_output
from aboard.record.run_record import Record
from aboard.transport.supervisor_messages import OutputChunk

# Ranks sample at the end of a window, and supervisors report once a second.
REPORTS_SECONDS = 3.0

TakeEvent = Callable[[Event], None]


class NodeMessages:
    """Takes events, measurements and output of ranks; `show` displays events, `on_event` gets those of nodes.

    `on_bad_loss` is called if a rank printed a suspicious loss.
    """

    def __init__(
        self, run: Run, record: Record, *, show: TakeEvent, on_event: TakeEvent, on_bad_loss: Callable[[], None]
    ) -> None:
        self.ranks: dict[str, int] = {}
        self.tails: dict[int, bytearray] = {}
        # Gets what ranks print, too.
        self.on_output: Callable[[OutputChunk], None] = lambda _chunk: None
        self._run = run
        self._record = record
        self._show = show
        self._on_event = on_event
        self._on_bad_loss = on_bad_loss
        self._stopped_since: dict[tuple[str, str], float] = {}
        self._lateness = LatenessMeter()
        self._window_ends = 0.0
        self._first_node = ""

    def expect(self, plan: Plan) -> None:
        """From here on, messages are about the ranks of this plan."""
        self.ranks = {start.child: rank for rank, (_, start) in enumerate(plan.starts())}
        self._first_node = next((node for node, _start in plan.starts()), "")

    def clear_output(self) -> None:
        """Forgets what ranks printed, and which are stopped."""
        self.tails.clear()
        self._record.clear_tails()
        self._stopped_since.clear()
        self.close_lateness_window(time(), at_end=True)
        self._lateness = LatenessMeter()

    def take(self, event: Event) -> None:
        event = replace(event, rank=self.ranks.get(event.child))
        if isinstance(event.body, kinds.FilesSaved) and event.node != self._first_node:
            # By the hash of its marker, the record vouches for a checkpoint.
            event = replace(event, body=replace(event.body, marker=None))
        self._run.apply(event)
        # A flood must not go to the screen, or to the log of a detached run, either.
        if self._record.event(event):
            self._show(event)
        self._on_event(event)

    def note(self, body: kinds.KnownEvent, node: str = "") -> None:
        """Records an event of the conductor itself."""
        event = Event(node=node, at=time(), body=body)
        self._run.apply(event)
        self._record.event(event)
        self._show(event)

    def take_samples(self, node: str, samples: Mapping[str, Any]) -> None:
        at = samples["wall"]
        for child, values in (("", samples["node"]), *samples["children"].items()):
            metrics = values.get("metrics", {})
            if (arrivals := values.pop("arrivals", None)) is not None:
                self._lateness.take(self.ranks[child], node, samples["clock_error"], arrivals)
            measurement = Measurement(node=node, at=at, child=child, values=values, metrics=metrics)
            self._run.take(measurement)
            if milestone := self._run.find_milestone(measurement):
                self.note(milestone)
            self._watch_stopped(node, child, values, at)
        figures = {**samples["node"], "gpus": samples["gpus"]} if samples["gpus"] else samples["node"]
        self._record.samples(node, at, {"node": figures, "children": samples["children"]})

    def take_piece(self, chunk: OutputChunk) -> None:
        rank = self.ranks[chunk.child]
        if chunk.stream == METRICS_STREAM:
            if rank == 0:
                self._record.metrics.feed(chunk.data, chunk.at, self._run.generation.number, dropped=chunk.dropped)
            return
        self.on_output(chunk)
        if is_suspicious_output(chunk.data):
            self._on_bad_loss()
        if chunk.data and chunk.stream == "stderr":
            tail = self.tails.setdefault(rank, bytearray())
            tail += chunk.data[-TAIL_BYTES:]
            del tail[:-TAIL_BYTES]
        self._record.add_output(
            chunk.node, rank, chunk.stream, chunk.data, chunk.at, dropped=chunk.dropped, end=chunk.end
        )

    def get_last_lines(self, rank: int) -> tuple[Untrusted, ...]:
        """The end of the rank's stderr."""
        return decode_tail(self.tails.get(rank, b""))

    def note_dropped(self, *, at_end: bool = False) -> None:
        """Records what nodes sent beyond their space: at first, each time that it has doubled, and at the end."""
        if at_end:
            self.close_lateness_window(time(), at_end=True)
        for node, counts in self._record.past_limits.items():
            total, noted = sum(counts.values()), sum(self._run.dropped.get(node, {}).values())
            if total >= 2 * noted or (at_end and total > noted):
                self.note(kinds.Dropped(**counts), node)

    def close_lateness_window(self, now: float, *, at_end: bool = False) -> LatenessWindow | None:
        """Records how late ranks were, once all of them should have reported the window that ended last: returns it."""
        end = now if at_end else (now - REPORTS_SECONDS) // WINDOW_SECONDS * WINDOW_SECONDS
        if end > self._window_ends:
            seconds = min(WINDOW_SECONDS, end - self._window_ends)
            self._window_ends = end
            if window := self._lateness.close_window(end, seconds, self._run.generation.number):
                self._record.lateness.take(window)
                return window
        return None

    def _watch_stopped(self, node: str, child: str, values: Mapping[str, float], at: float) -> None:
        if not values.get("stopped"):
            self._stopped_since.pop((node, child), None)
            return
        since = self._stopped_since.setdefault((node, child), at)
        if at - since >= STOPPED_SECONDS and self._run.generation.stopped is None:
            self.take(Event(node=node, at=since, child=child, body=kinds.RankStopped()))
