"""The events of a run on disk: rare, durable, and sufficient to fold the run again.

A node has a budget, since a hostile one sends events until the disk is full. A rank has at most 20 events of 250 bytes
per attempt, and up to 8 exceptions of 20 kB: 1.4 MB for 8 ranks. Checkpoints are most: 8 ranks that save every 10
minutes for 4 weeks have 32,000 events of 400 bytes, 13 MB. A link that is lost once an hour adds 0.3 MB.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aboard.core.decoding import DecodeError, parse_json, try_decode
from aboard.core.run import event_kinds as kinds
from aboard.core.run.event_codec import KINDS, decode_body, encode_body
from aboard.core.run.events import Event, EventSource
from aboard.core.text.byte_sizes import MIB
from aboard.record.json_documents import build_findings_document, decode_findings
from aboard.record.json_lines_journal import Journal, read_entries
from aboard.record.record_lines import choose_decoder

NODE_LIMIT = 32 * MIB
# A part of it is for the events without which the record has no end.
LAST_EVENTS = (kinds.Exited, kinds.StartFailed, kinds.Ending, kinds.Ended, kinds.NodeLost, kinds.RankStopped)
LAST_LIMIT = NODE_LIMIT // 4


class EventLog:
    """Append-only; each event is on disk before the next."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._sizes: Counter[str] = Counter()
        # The events that were past the limit of their node.
        self.past_limit: Counter[str] = Counter()

    @property
    def dropped(self) -> int:
        """Events lost to a full disk."""
        return self._journal.dropped

    def append(self, event: Event) -> bool:
        """Writes an event; returns whether it is on disk."""
        limit = NODE_LIMIT if isinstance(event.body, LAST_EVENTS) else NODE_LIMIT - LAST_LIMIT
        if event.node and not isinstance(event.body, kinds.Dropped) and self._sizes[event.node] >= limit:
            self.past_limit[event.node] += 1
            return False
        entry: dict[str, Any] = {"at": event.at, "node": event.node, "seq": event.seq, "kind": event.kind}
        if event.child:
            entry["child"] = event.child
        if event.rank is not None:
            entry["rank"] = event.rank
        if data := encode_body(event.body):
            if "findings" in data:
                data["findings"] = build_findings_document(data["findings"])
            entry["data"] = data
        before = self._journal.size
        written = self._journal.append(entry)
        self._sizes[event.node] += max(0, self._journal.size - before)
        return written

    def close(self) -> None:
        self._journal.close()


def read_events(path: Path, *, skip: Callable[[dict[str, Any]], bool] | None = None) -> Iterator[Event]:
    """The events in the order written, without those to `skip`; `dropped` marks where some are missing."""
    at = 0.0
    for entry in read_entries(path, choose_decoder() if skip else parse_json):
        if skip and skip(entry):
            continue
        missing = {"node": "", "at": at, "kind": kinds.Dropped.kind, "data": {"events": entry.get("dropped", 1)}}
        if (event := decode_event(entry) or decode_event(missing)) is not None:
            at = event.at
            yield event


def decode_event(entry: object, *, own: bool = True) -> Event | None:
    """Decodes an event, or returns None; one of a kind or of fields that are not known does nothing.

    Its texts come from ranks, nodes, or whoever packed a bundle; the fixes of findings only from one's `own` record.
    """
    source, unknown = try_decode(EventSource, entry), try_decode(kinds.UnknownEvent, entry)
    if source is None or unknown is None or not isinstance(entry, dict):
        return None
    return Event(**vars(source), body=_decode_body(unknown, entry.get("data"), own=own))


def _decode_body(unknown: kinds.UnknownEvent, data: object, *, own: bool) -> kinds.EventBody:
    kind, fields = KINDS.get(unknown.kind), data if isinstance(data, dict) else {}
    if "findings" in fields:
        fields = {**fields, "findings": decode_findings(fields["findings"], own=own)}
    try:
        return unknown if kind is None else decode_body(kind, fields)
    except DecodeError:
        return unknown
