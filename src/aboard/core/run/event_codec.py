"""The one codec of events: the fields of each kind, as frames of supervisors and lines of records have them."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_type_hints

from aboard.core.decoding import decode_with, make_decoder
from aboard.core.run.event_kinds import EventBody, KnownEvent, OmitDefault, Recovering, UnknownEvent

KINDS: Mapping[str, type[KnownEvent]] = {each.kind: each for each in get_args(KnownEvent)}
# What `recovering` has as objects and its line has beside its other fields: their fields, each with its key.
INLINE = {
    "failure": {"kind": "failure", "code": "code", "nodes": "nodes"},
    "decision": {"action": "action", "why": "why"},
}
_NOTHING = object()


def decode_body(kind: type[KnownEvent], data: Mapping[str, Any], *, strict: bool = False) -> KnownEvent:
    """Raises a DecodeError if a field doesn't match; without `strict`, only if a required one doesn't."""
    if kind is Recovering:
        objects = {
            name: {field: data[key] for field, key in keys.items() if key in data} for name, keys in INLINE.items()
        }
        data = {**data, **objects}
    body: KnownEvent = decode_with(make_decoder(kind, strict=strict), data)
    return body


def encode_body(body: EventBody) -> dict[str, Any]:
    """The fields as a line of the record has them, except for findings, which the record encodes."""
    if isinstance(body, UnknownEvent):
        return {}
    data = {}
    for name, omitted in _list_fields(body.kind):
        value = getattr(body, name)
        if value is not None and (omitted is _NOTHING or value != omitted):
            data[name] = value
    if isinstance(body, Recovering):
        for name, keys in INLINE.items():
            value = data.pop(name)
            data |= {key: getattr(value, field) for field, key in keys.items()}
    return data


@cache
def _list_fields(word: str) -> tuple[tuple[str, object], ...]:
    """The names of the fields of a kind, each with the value that is not written."""
    kind = KINDS[word]
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (each.name, each.default if OmitDefault() in getattr(hints[each.name], "__metadata__", ()) else _NOTHING)
        for each in fields(kind)
    )
