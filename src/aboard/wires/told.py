"""What a keeper tells, decoded at the border: a frame that is none of a keeper's breaks the protocol, and says so."""

from collections.abc import Callable, Container, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from aboard.agent import frames
from aboard.core.decoding import DecodeError, Decoder, Limit, Signed, make_decoder
from aboard.core.event import Event
from aboard.core.metrics import METRICS
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

T = TypeVar("T")
Phase = Literal["started", "torch", "store", "group", "collective"]
PHASES: tuple[str, ...] = get_args(Phase)
STREAMS = ("stdout", "stderr")
# Above any count of events or bytes, and still exact in every program that reads JSON.
MOST = 2**53
# Above any number of processes that a node starts for one run, and any name that we give one.
MOST_CHILDREN = 4096
NAME_CHARS = 200
NO_STACKS = "no stacks: "
_count: Callable[[object], int] = make_decoder(int, strict=True)
_clock: Callable[[object], float] = make_decoder(float, strict=True)
_text: Callable[[object], Untrusted] = make_decoder(Annotated[Untrusted, Limit(2000)], strict=True)
_trace: Callable[[object], Untrusted] = make_decoder(Annotated[Untrusted, Limit(8000)], strict=True)
_stacks: Callable[[object], Untrusted] = make_decoder(Annotated[Untrusted, Limit(64 * 1024)], strict=True)
# What each kind of event says besides who, when and of which child.
KINDS: Mapping[str, Mapping[str, Decoder]] = {
    "started": {"pid": _count},
    "exited": {"code": make_decoder(Signed, strict=True)},
    "failed": {"why": _text},
    "ending": {"why": _text},
    "ended": {
        "killed": _count,
        "stubborn": make_decoder(Annotated[tuple[int, ...], Limit(MOST_CHILDREN)], strict=True),
    },
    "phase": {"phase": make_decoder(Phase, strict=True)},
    "raised": {
        "type": make_decoder(Annotated[Untrusted, Limit(200)], strict=True),
        "message": _text,
        "trace": _trace,
        "error": _trace,
    },
}
# Without these the event says nothing.
NEEDED = ("code", "phase")
NODE_FIGURES: Mapping[str, type[float]] = {"load": float, "memory": float, "throttled": float}
CHILD_FIGURES: Mapping[str, type[float]] = {
    "step": int,
    "step_seconds": float,
    "rss": int,
    "cpu": float,
    "stopped": int,
    "doing": int,
}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of a child's output, come `at` the head's time; `dropped` bytes before it were lost to the spool."""

    node: str
    child: str
    stream: str
    offset: int
    data: bytes
    at: float
    dropped: int = 0
    end: bool = False


def event_of(message: frames.Message, node: str, clock_offset: float, children: Container[str]) -> Event:
    """The keeper's event, at the head's time."""
    kind = message.get("kind")
    fields = KINDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise frames.FrameError("an event of no known kind")
    return Event(
        node=node,
        seq=count_of(message, "event"),
        at=clock_of(message.get("wall")) - clock_offset,
        kind=str(kind),
        child=_known(message.get("child"), children) if kind not in ("ending", "ended") else "",
        data={key: _field(decoder, message, key) for key, decoder in fields.items() if key in message or key in NEEDED},
    )


def piece_of(
    message: frames.Message, node: str, clock_offset: float, have: Mapping[str, int], children: Container[str]
) -> Piece:
    """The part of an output frame that is new: after a cut the same bytes may come twice, by two bridges."""
    child, stream = _known(message.get("out"), children), message.get("stream")
    if stream not in STREAMS:
        raise frames.FrameError("output of no known stream")
    offset = count_of(message, "offset")
    data = message.get("data", "")
    try:
        data = frames.data(data[: frames.LIMIT])
    except (UnicodeEncodeError, TypeError, AttributeError):
        raise frames.FrameError("output that is no bytes") from None
    known = have.get(f"{child}/{stream}", 0)
    return Piece(
        node=node,
        child=child,
        stream=stream,
        offset=max(offset, known),
        data=data[max(0, known - offset) :],
        at=clock_of(message.get("wall")) - clock_offset,
        dropped=max(0, offset - known),
        end=bool(message.get("end")),
    )


def samples_of(message: frames.Message, clock_offset: float, children: Container[str]) -> dict[str, Any]:
    """The figures of one second: `wall` at the head's time, `node` and `children`; a key that is absent is unknown."""
    given = _object(message.get("samples"))
    told = _object(given.get("children", {}))
    return {
        "wall": clock_of(given.get("wall")) - clock_offset,
        "node": _figures(given.get("node", {}), NODE_FIGURES),
        "children": {_known(name, children): _child_figures(figures) for name, figures in told.items()},
    }


def stacks_of(reply: frames.Message, children: Container[str]) -> dict[str, Untrusted]:
    """Each child's stacks, or behind NO_STACKS the reason why there are none."""
    return {_known(name, children): _stack(given) for name, given in _object(reply.get("stacks")).items()}


def children_of(reply: frames.Message) -> set[str]:
    """The children that a keeper has, as it says when one attaches to it."""
    given = _object(reply.get("children", {}))
    if len(given) > MOST_CHILDREN or any(len(name) > NAME_CHARS for name in given):
        raise frames.FrameError("more children than a node can have")
    return set(given)


def count_of(message: frames.Message, key: str) -> int:
    return _field(_count, message, key)


def clock_of(given: object) -> float:
    """A node's clock as it was sent."""
    return _field(_clock, {"clock": given}, "clock")


def _field(decoder: Callable[[object], T], message: Mapping[str, Any], key: str) -> T:
    try:
        return decoder(message.get(key))
    except DecodeError as error:
        raise frames.FrameError(f"a frame with no such {key}: {error}") from None


def _known(given: object, children: Container[str]) -> str:
    if isinstance(given, str) and given in children:
        return given
    raise frames.FrameError("a word of a child that was never started")


def _object(given: object) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    raise frames.FrameError("a frame without its parts")


def _stack(given: object) -> Untrusted:
    if isinstance(given, str):
        return _field(_stacks, {"stack": given}, "stack")
    return Untrusted(NO_STACKS + _field(_text, {"why": "", **_object(given)}, "why").raw())


def _figures(given: object, known: Mapping[str, type[float]]) -> dict[str, Any]:
    """The busiest place of the head: eight ranks on each of a thousand nodes send theirs each second."""
    figures = _object(given)
    found = {}
    for key, kind in known.items():
        if key in figures:
            value = figures[key]
            # What is no number at all fails the comparison too.
            if type(value) not in (kind, int) or not 0 <= value < MOST:
                raise frames.FrameError(f"a frame without an amount as its {key}")
            found[key] = kind(value)
    return found


def _child_figures(given: object) -> dict[str, Any]:
    found = _figures(given, CHILD_FIGURES)
    if isinstance(given, dict) and "metrics" in given:
        told = _object(given["metrics"])
        found["metrics"] = {name: _field(_clock, told, name) for name in METRICS if name in told}
    return found
