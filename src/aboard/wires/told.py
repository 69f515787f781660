"""What a keeper tells, read at the border: a frame that is none of a keeper's breaks the protocol, and says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from aboard.agent import frames
from aboard.core.event import Event

KINDS = ("started", "exited", "failed", "ending", "ended")
# Above any count of events or bytes, and still exact in every program that reads JSON.
MOST = 2**53


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of a child's output; `dropped` bytes before it were lost to the spool's limit."""

    node: str
    child: str
    stream: str
    offset: int
    data: bytes
    dropped: int = 0
    end: bool = False


def event_of(message: frames.Message, node: str, clock_offset: float) -> Event:
    """The keeper's event, at the head's time."""
    kind = message.get("kind")
    if kind not in KINDS:
        raise frames.FrameError("an event of no known kind")
    code = message.get("code")
    if kind == "exited" and not isinstance(code, int):
        raise frames.FrameError("an exit without a code")
    return Event(
        node=node,
        seq=count_of(message, "event"),
        at=clock_of(message.get("wall")) - clock_offset,
        kind=kind,
        child=_text(message, "child"),
        data={key: value for key, value in message.items() if key not in ("event", "kind", "wall", "child")},
    )


def piece_of(message: frames.Message, node: str, have: Mapping[str, int]) -> Piece:
    """The part of an output frame that is new: after a cut the same bytes may come twice, by two bridges."""
    child, stream = _text(message, "out"), _text(message, "stream")
    offset = count_of(message, "offset")
    try:
        data = frames.data(_text(message, "data"))
    except UnicodeEncodeError:
        raise frames.FrameError("output that is no bytes") from None
    known = have.get(f"{child}/{stream}", 0)
    return Piece(
        node=node,
        child=child,
        stream=stream,
        offset=max(offset, known),
        data=data[max(0, known - offset) :],
        dropped=max(0, offset - known),
        end=bool(message.get("end")),
    )


def count_of(message: frames.Message, key: str) -> int:
    given = message.get(key)
    if isinstance(given, int) and 0 <= given < MOST:
        return given
    raise frames.FrameError(f"a frame without a count as its {key}")


def clock_of(given: object) -> float:
    """A node's clock as it was sent."""
    if isinstance(given, int | float) and abs(given) < MOST and isfinite(given):
        return float(given)
    raise frames.FrameError("a clock that shows no time")


def _text(message: frames.Message, key: str) -> str:
    given = message.get(key, "")
    if isinstance(given, str):
        return given
    raise frames.FrameError(f"a frame without text as its {key}")
