"""Parses a supervisor's frames into values; an invalid frame raises FrameError."""

from collections.abc import Callable, Container, Mapping
from typing import Annotated, Any, TypeVar

from aboard.agent import frames
from aboard.core.decoding import DecodeError, IpAddress, Matching, MaxLength, PortNumber, make_decoder
from aboard.core.run.event_codec import KINDS, decode_body
from aboard.core.run.event_kinds import AGENT_PROCESSES, MOST_CHILDREN, ChildReport, NodeReport
from aboard.core.run.events import METRICS_STREAM, STREAMS, Event
from aboard.core.run.lateness import UNMEASURED
from aboard.core.run.lateness_meter import GroupArrivals
from aboard.core.run.training_metrics import METRICS
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.lazy_dataclass import dataclass

T = TypeVar("T")
# Above any count of events or bytes, and still exact in every program that reads JSON.
MOST = 2**53
# Above any name that we give a process.
NAME_CHARS = 200
NO_STACKS = "no stacks: "
_decode_count: Callable[[object], int] = make_decoder(int, strict=True)
_decode_clock: Callable[[object], float] = make_decoder(float, strict=True)
_decode_text: Callable[[object], Untrusted] = make_decoder(Annotated[Untrusted, MaxLength(2000)], strict=True)
_decode_stacks: Callable[[object], Untrusted] = make_decoder(Annotated[Untrusted, MaxLength(64 * 1024)], strict=True)
MOST_SIGNAL = 64
NODE_FIGURE_TYPES: Mapping[str, type[float]] = {
    "load": float,
    "memory": float,
    "memory_total": int,
    "throttled": float,
    "received": int,
    "sent": int,
}
MOST_GPUS = 64
# Above what a beacon sends of one sample.
MOST_GROUPS, MOST_ARRIVALS = 8, 2048
_decode_gpus: Callable[[object], tuple[tuple[float | None, ...], ...]] = make_decoder(
    Annotated[
        tuple[tuple[float | None, float | None, float | None, float | None, float | None], ...], MaxLength(MOST_GPUS)
    ],
    strict=True,
)
CHILD_FIGURE_TYPES: Mapping[str, type[float]] = {
    "step": int,
    "step_seconds": float,
    "rss": int,
    "cpu": float,
    "stopped": int,
    "doing": int,
}


@dataclass(frozen=True, kw_only=True)
class OutputChunk:
    """A chunk of a child's output, `at` in the head's time; the spool dropped `dropped` bytes before it."""

    node: str
    child: str
    stream: str
    offset: int
    data: bytes
    at: float
    dropped: int = 0
    end: bool = False


@dataclass(frozen=True, kw_only=True)
class CopierEndpoint:
    """Where a node's copier listens for its peers."""

    address: IpAddress
    port: PortNumber


@dataclass(frozen=True, kw_only=True)
class ScriptActivity:
    """What a script does now: the line of its text, 0 if that is unknown, and the command that runs for `seconds`."""

    line: int
    script: Annotated[Untrusted, MaxLength(4096)]
    command: Annotated[Untrusted, MaxLength(300)]
    seconds: float


_decode_activity: Callable[[object], ScriptActivity] = make_decoder(ScriptActivity, strict=True)
_decode_endpoint: Callable[[object], CopierEndpoint] = make_decoder(CopierEndpoint, strict=True)
_Checkpoint = Annotated[str, Matching(r"step-\d{6,20}(-\d{1,6})?")]
_decode_pending: Callable[[object], tuple[tuple[str, int], ...]] = make_decoder(
    Annotated[tuple[tuple[_Checkpoint, int], ...], MaxLength(10_000)], strict=True
)


def parse_event(message: frames.Message, node: str, clock_offset: float, children: Container[str]) -> Event:
    """The supervisor's event, in the head's time."""
    name = message.get("kind")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not issubclass(kind, ChildReport | NodeReport):
        raise frames.FrameError("an event of unknown kind")
    try:
        body = decode_body(kind, message, strict=True)
    except DecodeError as error:
        raise frames.FrameError(f"an event of kind {name}: {error}") from None
    return Event(
        node=node,
        seq=parse_count(message, "event"),
        at=parse_clock(message.get("wall")) - clock_offset,
        child="" if isinstance(body, NodeReport) else _require_known_child(message.get("child"), children),
        body=body,
    )


def parse_output(
    message: frames.Message, node: str, clock_offset: float, have: Mapping[str, int], children: Container[str]
) -> OutputChunk:
    """The new part of an output frame: after a disconnect the same bytes may arrive twice, by two bridges."""
    child, stream = _require_known_child(message.get("out"), children), message.get("stream")
    if stream not in (*STREAMS, METRICS_STREAM):
        raise frames.FrameError("output of an unknown stream")
    offset = parse_count(message, "offset")
    data = message.get("data", "")
    try:
        data = frames.text_to_bytes(data[: frames.LIMIT])
    except (UnicodeEncodeError, TypeError, AttributeError):
        raise frames.FrameError("output that is not bytes") from None
    received = have.get(f"{child}/{stream}", 0)
    return OutputChunk(
        node=node,
        child=child,
        stream=stream,
        offset=max(offset, received),
        data=data[max(0, received - offset) :],
        at=parse_clock(message.get("wall")) - clock_offset,
        dropped=max(0, offset - received),
        end=bool(message.get("end")),
    )


def parse_measurements(message: frames.Message, clock_offset: float, children: Container[str]) -> dict[str, Any]:
    """The measurements of one second: `node`, `gpus` and `children` at the head's `wall` time; absent is unknown."""
    samples = _require_object(message.get("samples"))
    figures_by_child = _require_object(samples.get("children", {}))
    return {
        "wall": parse_clock(samples.get("wall")) - clock_offset,
        "node": _parse_figures(samples.get("node", {}), NODE_FIGURE_TYPES),
        "gpus": _decode_field(_decode_gpus, samples, "gpus") if "gpus" in samples else (),
        "children": {
            _require_known_child(name, children): _parse_child_figures(figures, clock_offset)
            for name, figures in figures_by_child.items()
        },
    }


def parse_lost_agents(message: frames.Message) -> dict[str, float]:
    """What the bridge says when the supervisor is gone: which agents were killed, how long ago, and what it ended.

    Each agent comes with the signal that killed it, 0 if that is unknown; empty for a supervisor that ended by itself.
    """
    lost = _require_object(message.get("lost", {}))
    found = {name: parse_count(lost, name) for name in AGENT_PROCESSES if name in lost}
    if any(number > MOST_SIGNAL for number in found.values()):
        raise frames.FrameError("a signal that does not exist")
    if not found:
        return {}
    return {**found, "killed": parse_count(message, "killed"), "ago": parse_clock(message.get("ago", 0.0))}


def parse_stacks(reply: frames.Message, children: Container[str]) -> dict[str, Untrusted]:
    """Each child's stacks, or NO_STACKS followed by the reason."""
    return {
        _require_known_child(name, children): _parse_stack(stack)
        for name, stack in _require_object(reply.get("stacks")).items()
    }


def parse_copier_endpoint(reply: frames.Message) -> CopierEndpoint:
    """Where a node's copier listens."""
    return _decode_field(
        _decode_endpoint, {"endpoint": {key: reply.get(key) for key in ("address", "port")}}, "endpoint"
    )


def parse_activity(reply: frames.Message) -> ScriptActivity:
    return _decode_field(_decode_activity, reply, "activity")


def parse_missing_copies(reply: frames.Message) -> dict[str, int]:
    """The bytes that a node's copier still lacks, by checkpoint."""
    return dict(_decode_field(_decode_pending, reply, "pending"))


def parse_children(reply: frames.Message) -> set[str]:
    """The supervisor's children, from its reply to attach."""
    names = _require_object(reply.get("children", {}))
    if len(names) > MOST_CHILDREN or any(len(name) > NAME_CHARS for name in names):
        raise frames.FrameError("more children than a node can have")
    return set(names)


def parse_count(message: frames.Message, key: str) -> int:
    return _decode_field(_decode_count, message, key)


def parse_clock(value: object) -> float:
    """A node's clock as it was sent."""
    return _decode_field(_decode_clock, {"clock": value}, "clock")


def _decode_field(decoder: Callable[[object], T], message: Mapping[str, Any], key: str) -> T:
    try:
        return decoder(message.get(key))
    except DecodeError as error:
        raise frames.FrameError(f"a frame with an invalid {key}: {error}") from None


def _require_known_child(name: object, children: Container[str]) -> str:
    if isinstance(name, str) and name in children:
        return name
    raise frames.FrameError("a frame about a child that was never started")


def _require_object(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise frames.FrameError("a frame without the required object")


def _parse_stack(stack: object) -> Untrusted:
    if isinstance(stack, str):
        return _decode_field(_decode_stacks, {"stack": stack}, "stack")
    return Untrusted(NO_STACKS + _decode_field(_decode_text, {"why": "", **_require_object(stack)}, "why").raw())


def _parse_figures(raw: object, known: Mapping[str, type[float]]) -> dict[str, Any]:
    """The head's hottest code: eight ranks on each of a thousand nodes send these every second."""
    figures = _require_object(raw)
    parsed = {}
    for key, kind in known.items():
        if key in figures:
            value = figures[key]
            # A value that is not a number fails the comparison too.
            if type(value) not in (kind, int) or not 0 <= value < MOST:
                raise frames.FrameError(f"a frame whose {key} is not a valid number")
            parsed[key] = kind(value)
    return parsed


def _parse_child_figures(value: object, clock_offset: float) -> dict[str, Any]:
    figures = _parse_figures(value, CHILD_FIGURE_TYPES)
    if isinstance(value, dict) and "metrics" in value:
        metrics = _require_object(value["metrics"])
        figures["metrics"] = {name: _decode_field(_decode_clock, metrics, name) for name in METRICS if name in metrics}
    if isinstance(value, dict) and "arrivals" in value:
        figures["arrivals"] = _parse_arrivals(_require_object(value["arrivals"]), clock_offset)
    return figures


def _parse_arrivals(raw: Mapping[str, Any], clock_offset: float) -> tuple[GroupArrivals, ...] | str:
    """When a rank came to its last collectives, in the head's time, or why that is unknown."""
    if "groups" not in raw:
        return next((why for why in UNMEASURED if why == raw.get("why")), "old-torch")
    try:
        return tuple(_parse_group(row, clock_offset) for row in raw["groups"][:MOST_GROUPS])
    except (TypeError, ValueError) as error:
        raise frames.FrameError(f"invalid arrivals: {error}") from None


def _parse_group(row: Any, clock_offset: float) -> GroupArrivals:
    key, name, seqs, times, last = row
    if not isinstance(key, str) or not isinstance(name, str):
        raise frames.FrameError("arrivals of no group")
    if len(seqs) != len(times) or len(seqs) > MOST_ARRIVALS:
        raise frames.FrameError("arrivals without their times")
    for value in (*seqs, *times, last):
        if type(value) is not int or not 0 <= value < MOST:
            raise frames.FrameError("arrivals that are no numbers")
    at = {seq: time / 1e6 - clock_offset for seq, time in zip(seqs, times, strict=True)}
    return GroupArrivals(key=key[:NAME_CHARS], name=escape_text(name[:NAME_CHARS], NAME_CHARS), times=at, last=last)
