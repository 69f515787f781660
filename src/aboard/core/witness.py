"""What the agents saw when a run was asked about: values, as they come over the wire and are kept in the record."""

from collections.abc import Mapping
from dataclasses import field

from aboard.core.head import is_loopback
from aboard.core.ras import RasStatus
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Socket:
    """One TCP connection of a rank: `tx` bytes not acknowledged, `rx` unread, `resent` tries for the same bytes.

    What only the kernel knows of a connection that stands: round trips in seconds, `losses` of `segments`, how long the
    peer has been `silent`; None where it doesn't say.
    """

    local: str
    remote: str
    state: str
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

    pid: int
    name: str = ""
    state: str = ""
    states: str = ""
    wchan: str = ""
    call: str = ""
    file: str = ""
    cpu: float = 0.0
    delay: float = 0.0
    threads: int = 0
    rss: int = 0


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One entry of a flight record; `at` is the node's clock when the rank came to it, in seconds."""

    seq: int
    op: str
    at: float
    over: bool
    p2p: bool = False
    sizes: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """What a rank has done in one process group: the last collective that it began and that it completed."""

    name: str
    what: str
    enqueued: int
    completed: int
    entries: tuple[Collective, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What a rank asked of the store."""

    host: str = ""
    port: int = 0
    world: int | None = None
    rank: int | None = None
    master: bool = False


@dataclass(frozen=True, kw_only=True)
class RankWitness:
    """One rank: its process, those below it, its connections, where its code is; `why` tells what could not be had."""

    process: Process | None = None
    workers: tuple[Process, ...] = ()
    sockets: tuple[Socket, ...] = ()
    stack: str = ""
    groups: tuple[Group, ...] | None = None
    joining: Joining | None = None
    doing: str = ""
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The room behind a path; `inodes` is the part of its names that is free."""

    path: str
    free: int = 0
    size: int = 0
    inodes: float = 1.0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A network card: bytes a second in and out, and how often its carrier has changed."""

    name: str
    state: str
    received: int = 0
    sent: int = 0
    errors: int = 0
    changes: int = 0


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A process that isn't the run's, and the cores that it takes."""

    pid: int
    name: str
    cores: float


@dataclass(frozen=True, kw_only=True)
class Echo:
    """Packets to one address: whether a small one was answered, and one as large as the card allows; sent and lost."""

    small: bool
    large: bool
    sent: int = 2
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeWitness:
    """One node, `at` the head's time; `offset` is its clock less the head's. `hung` is a question that never ended.

    `gpus` are the PCI addresses of the driver's GPUs in their order. `ras` is what NCCL told there, or why it did not;
    None where no rank of the run has it.
    """

    at: float
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
    quota: str = ""
    others: float | None = None
    resent: float | None = None
    neighbours: tuple[Neighbour, ...] = ()
    links: tuple[Link, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str, str], ...] = ()
    disks: tuple[Disk, ...] = ()
    dials: Mapping[tuple[str, int], str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...] | str] = field(default_factory=dict)
    echoes: Mapping[str, Echo] = field(default_factory=dict)
    hostname: str = ""
    kernel: tuple[str, ...] | None = None
    gpus: tuple[str, ...] = ()
    ras: RasStatus | str | None = None
    hung: str = ""

    @property
    def names_itself_loopback(self) -> bool:
        """Whether its own name stands for the loopback alone, as some /etc/hosts have it."""
        found = self.names.get(self.hostname)
        return isinstance(found, tuple) and bool(found) and all(is_loopback(each) for each in found)


def split(place: str) -> tuple[str, int]:
    """`10.0.0.1:29500` as host and port."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
