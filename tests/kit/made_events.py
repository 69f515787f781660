"""Events as lines of a record have them: by the word for their kind, and the fields of that."""

import json
from typing import Any

from aboard.core.run.event_codec import KINDS, encode_body
from aboard.core.run.event_kinds import UnknownEvent
from aboard.core.run.events import Event
from aboard.diagnoses.untrusted import encode_text
from aboard.record.event_log import decode_event

SOURCE = ("node", "seq", "at", "child", "rank")


def made_event(kind: str, **given: Any) -> Event:
    """Decoded as from one's own record; a kind whose fields don't fit is a mistake of the test."""
    data = {name: value for name, value in given.items() if name not in SOURCE}
    if kind == "recovering":
        data = {"code": "", "failure": "unknown", "action": "restart", "why": ""} | data
    entry = {
        "node": "",
        "at": 0.0,
        **{name: given[name] for name in SOURCE if name in given},
        "kind": kind,
        "data": data,
    }
    event = decode_event(json.loads(json.dumps(entry, default=encode_text)))
    assert event is not None, entry
    assert kind not in KINDS or not isinstance(event.body, UnknownEvent), entry
    return event


def list_fields(event: Event) -> dict[str, Any]:
    """The fields as the record has them."""
    return encode_body(event.body)
