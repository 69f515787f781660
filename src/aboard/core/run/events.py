"""Events and measurements, from which the state of a run is computed."""

from collections.abc import Mapping
from dataclasses import field

from aboard.core.run.event_kinds import EventBody
from aboard.lazy_dataclass import dataclass

# A rank's output streams. Log indexes number them in this order.
STREAMS = ("stdout", "stderr")
# The lines of a trainer's metrics, which come as another stream does.
METRICS_STREAM = "metrics"


@dataclass(frozen=True, kw_only=True)
class EventSource:
    """Where an event comes from, and when; the number is its supervisor's, the time the head's corrected one.

    The conductor's own events have no number, and those of the whole run no node.
    """

    node: str
    seq: int = 0
    at: float
    child: str = ""
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Event(EventSource):
    """Something rare that happened; durable and ordered."""

    body: EventBody

    @property
    def kind(self) -> str:
        """The word for its kind."""
        return self.body.kind


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Figures of one child of which only the latest values matter: step, step_seconds, rss, cpu, state.

    `metrics` are what its trainer reports: loss, learning_rate and the like.
    """

    node: str
    at: float
    child: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
