"""The events of a run on disk: rare, durable, and all that is needed to fold the run again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aboard.core.event import Event
from aboard.record.journal import Journal, entries

# What the record itself tells when events are missing; folds that don't know the kind pass it by.
DROPPED = "dropped"


class EventLog:
    """Append-only, each event on disk before the next."""

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


def replay(path: Path) -> Iterator[Event]:
    """The events in the order in which they were written; `dropped` stands where some are missing."""
    at = 0.0
    for entry in entries(path):
        try:
            event = Event(
                node=str(entry["node"]),
                seq=int(entry["seq"]),
                at=float(entry["at"]),
                kind=str(entry["kind"]),
                child=str(entry.get("child", "")),
                rank=entry.get("rank"),
                data=entry.get("data", {}),
            )
        except (KeyError, TypeError, ValueError):
            event = Event(node="", seq=0, at=at, kind=DROPPED, data={"events": entry.get("dropped", 1)})
        at = event.at
        yield event
