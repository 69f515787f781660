"""What a keeper tells, read at the border: a frame that is none of a keeper's breaks the protocol, and says so.

Only what is known is taken over, and only so much of it: a node that lies can't fill the head's memory.
"""

from collections.abc import Callable, Container, Mapping
from math import isfinite
from typing import Any

from aboard.agent import frames
from aboard.core.event import Event
from aboard.core.metrics import METRICS
from aboard.lazy import dataclass

PHASES = ("started", "torch", "store", "group", "collective")
# Above any count of events or bytes, and still exact in every program that reads JSON.
MOST = 2**53
# Above any number of processes that a node starts for one run, and any name that we give one.
MOST_CHILDREN = 4096
NAME_CHARS = 200
STREAMS = ("stdout", "stderr")
TYPE_CHARS, TEXT_CHARS, TRACE_CHARS = 200, 2000, 8000
STACKS_CHARS = 64 * 1024
NO_STACKS = "no stacks: "


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
        child=_child(message, "child", children) if kind not in ("ending", "ended") else "",
        data={key: read(message, key) for key, read in fields.items() if key in message or key in NEEDED},
    )


def piece_of(
    message: frames.Message, node: str, clock_offset: float, have: Mapping[str, int], children: Container[str]
) -> Piece:
    """The part of an output frame that is new: after a cut the same bytes may come twice, by two bridges."""
    child, stream = _child(message, "out", children), message.get("stream")
    if stream not in STREAMS:
        raise frames.FrameError("output of no known stream")
    offset = count_of(message, "offset")
    try:
        data = frames.data(_text(message, "data", frames.LIMIT))
    except UnicodeEncodeError:
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


def stacks_of(reply: frames.Message, children: Container[str]) -> dict[str, str]:
    """Each child's stacks, or behind NO_STACKS the reason why there are none."""
    found = {}
    for name, given in _object(reply.get("stacks")).items():
        child = _child({"child": name}, "child", children)
        if isinstance(given, str):
            found[child] = given[:STACKS_CHARS]
        else:
            found[child] = NO_STACKS + _text(_object(given), "why", TEXT_CHARS)
    return found


def children_of(reply: frames.Message) -> set[str]:
    """The children that a keeper has, as it says when one attaches to it."""
    given = _object(reply.get("children", {}))
    if len(given) > MOST_CHILDREN or any(len(name) > NAME_CHARS for name in given):
        raise frames.FrameError("more children than a node can have")
    return set(given)


def count_of(message: frames.Message, key: str) -> int:
    given = message.get(key)
    if isinstance(given, int) and 0 <= given < MOST:
        return given
    raise frames.FrameError(f"a frame without a count as its {key}")


def clock_of(given: object) -> float:
    """A node's clock as it was sent."""
    return _finite(given, "a clock that shows no time")


def _finite(given: object, else_said: str) -> float:
    if isinstance(given, int | float) and abs(given) < MOST and isfinite(given):
        return float(given)
    raise frames.FrameError(else_said)


def _child(message: frames.Message, key: str, children: Container[str]) -> str:
    return _known(message.get(key), children)


def _known(given: object, children: Container[str]) -> str:
    if isinstance(given, str) and given in children:
        return given
    raise frames.FrameError("a word of a child that was never started")


def _object(given: object) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    raise frames.FrameError("a frame without its parts")


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
        found["metrics"] = {name: _finite(told[name], f"no number as its {name}") for name in METRICS if name in told}
    return found


def _text(message: frames.Message, key: str, most: int) -> str:
    given = message.get(key, "")
    if isinstance(given, str):
        return given[:most]
    raise frames.FrameError(f"a frame without text as its {key}")


def _code(message: frames.Message, key: str) -> int:
    given = message.get(key)
    if isinstance(given, int) and abs(given) < MOST:
        return given
    raise frames.FrameError("an exit without a code")


def _phase(message: frames.Message, key: str) -> str:
    given = message.get(key)
    if given in PHASES:
        return str(given)
    raise frames.FrameError("a phase of no known name")


def _pids(message: frames.Message, key: str) -> list[int]:
    given = message.get(key, [])
    if isinstance(given, list) and all(isinstance(pid, int) and 0 <= pid < MOST for pid in given):
        return given[:MOST_CHILDREN]
    raise frames.FrameError("processes without numbers")


def _up_to(most: int) -> Callable[[frames.Message, str], str]:
    return lambda message, key: _text(message, key, most)


# What each kind of event says besides who, when and of which child.
KINDS: Mapping[str, Mapping[str, Callable[[frames.Message, str], Any]]] = {
    "started": {"pid": count_of},
    "exited": {"code": _code},
    "failed": {"why": _up_to(TEXT_CHARS)},
    "ending": {"why": _up_to(TEXT_CHARS)},
    "ended": {"killed": count_of, "stubborn": _pids},
    "phase": {"phase": _phase},
    "raised": {
        "type": _up_to(TYPE_CHARS),
        "message": _up_to(TEXT_CHARS),
        "trace": _up_to(TRACE_CHARS),
        "error": _up_to(TRACE_CHARS),
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
