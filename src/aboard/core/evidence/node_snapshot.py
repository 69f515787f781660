"""Snapshots of nodes and ranks: values, as agents send them and as the record stores them."""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from aboard.core.cluster.head_machine import is_loopback
from aboard.core.decoding import (
    Address,
    CustomDecoder,
    DecodeError,
    Endpoint,
    JsonKey,
    KeyedBy,
    Matching,
    MaxLength,
    Signed,
    Word,
    decode,
    try_decode,
)
from aboard.core.evidence.nccl_ras import RasStatus, parse_ras_status
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.lazy_dataclass import dataclass

_STACK, _RAS = 64 * 1024, 256 * 1024
_MOST_NUMBER = 2**62
# In the order of the beacon's numbers: agent/beacon/report_receiver.py.
ACTIVITIES = ("", "evaluation", "checkpoint", "data", "compiling", "rendezvous")
# Every rank passes the same sizes and types to these. Not to all_to_all, gather or scatter, nor to coalesced calls.
_EVEN = re.compile(
    r"(?:_?all_?reduce|broadcast|_?reduce|_all_?gather_base|_reduce_scatter_base|barrier)(?!\w*coalesced)\w*",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class TcpConnection:
    """One TCP connection: `tx` bytes unacknowledged, `rx` bytes unread, `resent` retries of the same bytes.

    The rest is known only to the kernel, for established connections: round trips in seconds, `losses` of `segments`,
    how long the peer has been `silent`; None where it isn't reported.
    """

    local: Endpoint = ""
    remote: Endpoint = ""
    state: Word = ""
    tx: int = 0
    rx: int = 0
    resent: int = 0
    inode: int = 0
    rtt: float | None = None
    least_rtt: float | None = None
    losses: int | None = None
    segments: int | None = None
    rate: int | None = None
    silent: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessSnapshot:
    """One process over half a second: `states` are its samples (`SSSS`), `cpu` cores used, `delay` cores waited for."""

    pid: int = 0
    name: Untrusted = NO_TEXT
    state: Word = ""
    states: Word = ""
    wchan: Word = ""
    call: Word = ""
    file: Untrusted = NO_TEXT
    cpu: float = 0.0
    delay: float = 0.0
    threads: int = 0
    rss: int = 0


def decode_count(value: object) -> int:
    """A number, or its digits: the recorder's JSON has both."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < _MOST_NUMBER:
        return value
    raise DecodeError("expected a number")


_Size = Annotated[int, CustomDecoder(decode_count)]
_Sizes = Annotated[tuple[Annotated[tuple[_Size, ...], MaxLength(8)], ...], MaxLength(4)]


def decode_sizes(value: object) -> str:
    """The sizes of the first tensors that a rank passed, as `[[10], [4, 2]]`."""
    return str([list(each) for each in decode(_Sizes, value)])


TensorTypes = Annotated[tuple[Word, ...], MaxLength(4)]


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """One entry of a flight record; `at` is when the rank reached it, in seconds by the node's clock.

    `sizes` and `types` of its tensors are only kept where all ranks must pass the same.
    """

    seq: int
    op: Annotated[str, Matching(r"[\w:.()<> -]{0,80}")] = ""
    at: float = 0.0
    over: bool
    p2p: bool = False
    sizes: Annotated[str, CustomDecoder(decode_sizes)] = ""
    types: TensorTypes = ()


def omit_uneven_tensors(record: CollectiveRecord) -> CollectiveRecord:
    """The record without its sizes and types if ranks may pass different ones."""
    even = not record.p2p and _EVEN.fullmatch(record.op.rpartition(":")[2])
    return record if even else replace(record, sizes="", types=())


def _decode_collective(row: object) -> CollectiveRecord:
    """In the beacon's order: numbers, kind, name, state, whether it is over, when it began, and sometimes tensors."""
    match row:
        case [seq, p2p_seq, p2p, op, state, over, began, *tensors]:
            began = began / 1e9 if isinstance(began, int | float) else 0.0
            over = over is True or state == "completed"
            fields = {"seq": p2p_seq if p2p else seq, "op": op, "at": began, "over": over, "p2p": p2p is True}
            return omit_uneven_tensors(decode(CollectiveRecord, {**fields, **_select_tensors(tensors)}))
    raise DecodeError("expected a row of seven")


def _select_tensors(tensors: list[object]) -> dict[str, object]:
    """The sizes and types that a rank passed; those of the results are not compared."""
    match tensors:
        case [[sizes, _, types]]:
            return {"sizes": sizes, "types": types}
    return {}


@dataclass(frozen=True, kw_only=True)
class ProcessGroupRecord:
    """A rank's progress in one process group: the last collective that it began, and the last that it completed."""

    name: str = ""
    what: str = ""
    enqueued: Signed = -1
    completed: Signed = -1
    entries: Annotated[tuple[Annotated[CollectiveRecord, CustomDecoder(_decode_collective)], ...], MaxLength(256)] = ()


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """A rank's request to the store."""

    host: Word = ""
    port: int = 0
    world: int | None = None
    rank: int | None = None
    master: bool = False
    # Since when; None where that is unknown.
    seconds: float | None = None


def _decode_activity(number: object) -> str:
    if isinstance(number, int) and 0 <= number < len(ACTIVITIES):
        return ACTIVITIES[number]
    raise DecodeError("expected the number of an activity")


@dataclass(frozen=True, kw_only=True)
class RankSnapshot:
    """One rank: its process and descendants, its connections, its stack; `why` says what could not be read.

    `rdma` is whether it has an RDMA device open, as NCCL does unless it uses sockets; None where that is unknown.
    """

    process: ProcessSnapshot | None = None
    workers: tuple[ProcessSnapshot, ...] = ()
    sockets: tuple[TcpConnection, ...] = ()
    rdma: bool | None = None
    stack: Annotated[Untrusted, MaxLength(_STACK, last=True)] = NO_TEXT
    groups: Annotated[tuple[ProcessGroupRecord, ...], KeyedBy("name")] | None = None
    joining: StoreRequest | None = None
    doing: Annotated[str, CustomDecoder(_decode_activity)] = ""
    why: Mapping[str, str] = field(default_factory=dict)


def decode_rank_snapshot(answer: Mapping[str, Any]) -> RankSnapshot:
    """Decodes a node's reply about a rank, in which the fields of its process are inlined."""
    stack, flight = answer.get("stack"), answer.get("flight")
    flight = flight if isinstance(flight, dict) else {}
    why = {"stack": stack.get("why")} if isinstance(stack, dict) else {}
    if "groups" not in flight:
        why["flight"] = flight.get("why") or "it has no beacon"
    process = answer if "state" in answer else None
    fields = {**answer, "process": process, "groups": flight.get("groups"), "joining": answer.get("joining") or None}
    return decode(RankSnapshot, {**fields, "why": why})


@dataclass(frozen=True, kw_only=True)
class DiskUsage:
    """The free space at a path; `inodes` is the free share of inodes."""

    path: Untrusted = NO_TEXT
    free: int = 0
    size: int = 0
    inodes: float = 1.0
    why: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class NicTraffic:
    """A NIC: bytes per second in and out, and how often its carrier changed."""

    name: Word
    state: Word = ""
    received: int = 0
    sent: int = 0
    errors: int = 0
    changes: int = 0


@dataclass(frozen=True, kw_only=True)
class OtherProcess:
    """A process outside the run, and the cores that it uses."""

    pid: int = 0
    name: Untrusted = NO_TEXT
    cores: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PingResult:
    """Pings to one address: whether a small packet and one of the NIC's MTU were answered; packets sent and lost."""

    small: bool
    large: bool
    sent: int = 2
    lost: int = 0


def _decode_ras(answer: object) -> RasStatus | str | None:
    match answer:
        case {"text": str(text)}:
            return parse_ras_status(text[:_RAS]) or "unrecognized or truncated reply"
        case {"why": str(why)}:
            return escape_text(why, 400) or "unrecognized reply"
    return "unrecognized reply" if answer else None


@dataclass(frozen=True, kw_only=True)
class NodeSnapshot:
    """One node, `at` the head's time; `offset` is its clock minus the head's. `hung` is a query that never finished.

    `gpus` are the PCI addresses of the driver's GPUs in their order. `hcas` are the host's RDMA adapters. `ras`
    is the reply of NCCL's RAS there, or why there is none; None if no rank of the run has RAS.
    """

    at: float = 0.0
    offset: float = 0.0
    ranks: Mapping[int, RankSnapshot] = field(default_factory=dict)
    cores: int | None = None
    load: float | None = None
    memory: int | None = None
    free: int | None = None
    limit: int | None = None
    held: int | None = None
    oom_kills: int | None = None
    oom_before: int | None = None
    # Reports of ranks that their beacon's receiver could not read.
    malformed: int = 0
    throttled: float | None = None
    # The file with the CPU quota of its control group, if there is one.
    quota: Untrusted = NO_TEXT
    others: float | None = None
    resent: float | None = None
    neighbours: tuple[OtherProcess, ...] = ()
    links: Annotated[tuple[NicTraffic, ...], KeyedBy("name")] = ()
    addresses: tuple[tuple[Word, Address], ...] = ()
    mounts: tuple[tuple[Untrusted, Word, Untrusted], ...] = ()
    disks: tuple[DiskUsage, ...] = ()
    dials: Mapping[tuple[Word, int], str] = field(default_factory=dict)
    names: Mapping[Word, tuple[Address, ...] | Untrusted] = field(default_factory=dict)
    echoes: Mapping[Address, PingResult] = field(default_factory=dict)
    hostname: Word = ""
    kernel: tuple[Untrusted, ...] | None = None
    gpus: tuple[Word, ...] = ()
    hcas: tuple[Word, ...] = ()
    ras: Annotated[RasStatus | str | None, CustomDecoder(_decode_ras)] = None
    hung: Annotated[Untrusted, JsonKey("asked")] = NO_TEXT

    @property
    def names_itself_loopback(self) -> bool:
        """Whether its own name resolves only to loopback, as in some /etc/hosts."""
        found = self.names.get(self.hostname)
        return isinstance(found, tuple) and bool(found) and all(is_loopback(each) for each in found)


def decode_node_snapshot(answer: object, ranks: Mapping[str, int], offset: float) -> NodeSnapshot:
    """Decodes a node's reply; `ranks` maps the names of its children to ranks; `offset` is its clock minus ours.

    The transport and the record use the same decoder, since replies are recorded unchanged.
    """
    content = answer if isinstance(answer, dict) else {}
    children = content.get("children")
    items = children.items() if isinstance(children, dict) else ()
    return replace(
        try_decode(NodeSnapshot, content.get("node")) or NodeSnapshot(),
        at=(try_decode(float, content.get("wall")) or 0.0) - offset,
        offset=offset,
        ranks={
            ranks[name]: decode_rank_snapshot(each if isinstance(each, dict) else {})
            for name, each in items
            if name in ranks
        },
    )


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """`10.0.0.1:29500` as host and port."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
