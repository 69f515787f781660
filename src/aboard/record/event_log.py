"""The events of a run on disk: rare, durable, and sufficient to fold the run again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from aboard.core.decoding import try_decode
from aboard.core.run.events import Event
from aboard.diagnoses.untrusted import Untrusted
from aboard.record.json_lines_journal import Journal, read_entries

# The kind that the record inserts where events are missing; other code ignores it.
DROPPED = "dropped"
_TEXT = 20_000


class EventLog:
    """Append-only; each event is on disk before the next."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    @property
    def dropped(self) -> int:
        return self._journal.dropped

    def append(self, event: Event) -> bool:
        entry: dict[str, Any] = {"at": event.at, "node": event.node, "seq": event.seq, "kind": event.kind}
        if event.child:
            entry["child"] = event.child
        if event.rank is not None:
            entry["rank"] = event.rank
        if event.data:
            entry["data"] = dict(event.data)
        return self._journal.append(entry)

    def close(self) -> None:
        self._journal.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events in the order written; `dropped` marks where some are missing."""
    at = 0.0
    for entry in read_entries(path):
        event = decode_event(entry) or Event(
            node="", seq=0, at=at, kind=DROPPED, data={"events": entry.get("dropped", 1)}
        )
        at = event.at
        yield event


def decode_event(entry: object) -> Event | None:
    """Decodes an event, or returns None; its texts come from ranks, nodes, or whoever packed a bundle."""
    event = try_decode(Event, entry)
    if event is None:
        return None
    texts = {name: Untrusted(value[:_TEXT]) for name, value in event.data.items() if isinstance(value, str)}
    return replace(event, data={**event.data, **texts})
