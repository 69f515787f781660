"""What the agents saw when a run was asked about: values, as they come over the wire and are kept in the record."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from aboard.core.decoding import (
    Address,
    DecodeError,
    Endpoint,
    Key,
    Keyed,
    Limit,
    Matching,
    Signed,
    Via,
    Word,
    decode,
    try_decode,
)
from aboard.core.head import is_loopback
from aboard.core.ras import RasStatus, ras_status
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, visible
from aboard.lazy import dataclass

_STACK, _RAS = 64 * 1024, 256 * 1024
# As the beacon numbers them: agent/beacons.py.
DOINGS = ("", "evaluation", "checkpoint", "data", "compiling")


@dataclass(frozen=True, kw_only=True)
class Socket:
    """One TCP connection of a rank: `tx` bytes not acknowledged, `rx` unread, `resent` tries for the same bytes.

    What only the kernel knows of a connection that stands: round trips in seconds, `losses` of `segments`, how long the
    peer has been `silent`; None where it doesn't say.
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
class Process:
    """One process over half a second: `states` are its looks (`SSSS`), `cpu` cores used, `delay` cores waited for."""

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


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One entry of a flight record; `at` is the node's clock when the rank came to it, in seconds."""

    seq: int
    op: Annotated[str, Matching(r"[\w:.()<> -]{0,80}")] = ""
    at: float = 0.0
    over: bool
    p2p: bool = False
    sizes: Annotated[str, Matching(r"[\d\[\], ]{0,400}")] = ""


def _decode_collective(row: object) -> Collective:
    """As the beacon tells it: numbers, kind, name, state, whether it is over, when it began, and some with sizes."""
    match row:
        case [seq, p2p_seq, p2p, op, state, over, began, *sizes]:
            began = began / 1e9 if isinstance(began, int | float) else 0.0
            over = over is True or state == "completed"
            told = {"seq": p2p_seq if p2p else seq, "op": op, "at": began, "over": over, "p2p": p2p is True}
            return decode(Collective, {**told, "sizes": str(sizes[0]) if sizes else ""})
    raise DecodeError("a row of seven is wanted")


@dataclass(frozen=True, kw_only=True)
class Group:
    """What a rank has done in one process group: the last collective that it began and that it completed."""

    name: str = ""
    what: str = ""
    enqueued: Signed = -1
    completed: Signed = -1
    entries: Annotated[tuple[Annotated[Collective, Via(_decode_collective)], ...], Limit(256)] = ()


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What a rank asked of the store."""

    host: Word = ""
    port: int = 0
    world: int | None = None
    rank: int | None = None
    master: bool = False


def _decode_doing(number: object) -> str:
    if isinstance(number, int) and 0 <= number < len(DOINGS):
        return DOINGS[number]
    raise DecodeError("a number of what ranks do is wanted")


@dataclass(frozen=True, kw_only=True)
class RankWitness:
    """One rank: its process, those below it, its connections, where its code is; `why` tells what could not be had."""

    process: Process | None = None
    workers: tuple[Process, ...] = ()
    sockets: tuple[Socket, ...] = ()
    stack: Annotated[Untrusted, Limit(_STACK, last=True)] = NO_TEXT
    groups: Annotated[tuple[Group, ...], Keyed("name")] | None = None
    joining: Joining | None = None
    doing: Annotated[str, Via(_decode_doing)] = ""
    why: Mapping[str, str] = field(default_factory=dict)


def decode_rank(given: Mapping[str, Any]) -> RankWitness:
    """What a node tells of a rank: its process stands among the rest of it."""
    stack, flight = given.get("stack"), given.get("flight")
    flight = flight if isinstance(flight, dict) else {}
    why = {"stack": stack.get("why")} if isinstance(stack, dict) else {}
    if "groups" not in flight:
        why["flight"] = flight.get("why") or "it has no beacon"
    process = given if "state" in given else None
    told = {**given, "process": process, "groups": flight.get("groups"), "joining": given.get("joining") or None}
    return decode(RankWitness, {**told, "why": why})


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The room behind a path; `inodes` is the part of its names that is free."""

    path: Untrusted = NO_TEXT
    free: int = 0
    size: int = 0
    inodes: float = 1.0
    why: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class Link:
    """A network card: bytes a second in and out, and how often its carrier has changed."""

    name: Word
    state: Word = ""
    received: int = 0
    sent: int = 0
    errors: int = 0
    changes: int = 0


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A process that isn't the run's, and the cores that it takes."""

    pid: int = 0
    name: Untrusted = NO_TEXT
    cores: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Echo:
    """Packets to one address: whether a small one was answered, and one as large as the card allows; sent and lost."""

    small: bool
    large: bool
    sent: int = 2
    lost: int = 0


def _decode_ras(given: object) -> RasStatus | str | None:
    match given:
        case {"text": str(text)}:
            return ras_status(text[:_RAS]) or "its answer is none that is known, or it was cut"
        case {"why": str(why)}:
            return visible(why, 400) or "its answer is none that is known"
    return "its answer is none that is known" if given else None


@dataclass(frozen=True, kw_only=True)
class NodeWitness:
    """One node, `at` the head's time; `offset` is its clock less the head's. `hung` is a question that never ended.

    `gpus` are the PCI addresses of the driver's GPUs in their order. `ras` is what NCCL told there, or why it did not;
    None where no rank of the run has it.
    """

    at: float = 0.0
    offset: float = 0.0
    ranks: Mapping[int, RankWitness] = field(default_factory=dict)
    cores: int | None = None
    load: float | None = None
    memory: int | None = None
    free: int | None = None
    limit: int | None = None
    held: int | None = None
    oom_kills: int | None = None
    oom_before: int | None = None
    throttled: float | None = None
    # The file that rations the time of its control group, where there is one.
    quota: Untrusted = NO_TEXT
    others: float | None = None
    resent: float | None = None
    neighbours: tuple[Neighbour, ...] = ()
    links: Annotated[tuple[Link, ...], Keyed("name")] = ()
    addresses: tuple[tuple[Word, Address], ...] = ()
    mounts: tuple[tuple[Untrusted, Word, Untrusted], ...] = ()
    disks: tuple[Disk, ...] = ()
    dials: Mapping[tuple[Word, int], str] = field(default_factory=dict)
    names: Mapping[Word, tuple[Address, ...] | Untrusted] = field(default_factory=dict)
    echoes: Mapping[Address, Echo] = field(default_factory=dict)
    hostname: Word = ""
    kernel: tuple[Untrusted, ...] | None = None
    gpus: tuple[Word, ...] = ()
    ras: Annotated[RasStatus | str | None, Via(_decode_ras)] = None
    hung: Annotated[Untrusted, Key("asked")] = NO_TEXT

    @property
    def names_itself_loopback(self) -> bool:
        """Whether its own name stands for the loopback alone, as some /etc/hosts have it."""
        found = self.names.get(self.hostname)
        return isinstance(found, tuple) and bool(found) and all(is_loopback(each) for each in found)


def decode_node(given: object, ranks: Mapping[str, int], offset: float) -> NodeWitness:
    """`ranks` are the numbers of the node's children by name; `offset` is its clock less ours.

    The same decoder serves the wire and the record, in which the answers are kept as they came.
    """
    whole = given if isinstance(given, dict) else {}
    children = whole.get("children")
    told = children.items() if isinstance(children, dict) else ()
    return replace(
        try_decode(NodeWitness, whole.get("node")) or NodeWitness(),
        at=(try_decode(float, whole.get("wall")) or 0.0) - offset,
        offset=offset,
        ranks={
            ranks[name]: decode_rank(each if isinstance(each, dict) else {}) for name, each in told if name in ranks
        },
    )


def split(place: str) -> tuple[str, int]:
    """`10.0.0.1:29500` as host and port."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
