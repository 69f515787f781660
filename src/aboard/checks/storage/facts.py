"""What a node told of its storage, as values."""

from collections.abc import Mapping
from typing import Annotated, Any

from aboard.checks.scripted import AnyPath, Plain, as_a_rank, decode_told, said
from aboard.checks.storage.script import MOUNT_SECONDS, SCRIPT
from aboard.core.decoding import DecodeError, Key, Matching, Via, decode
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Probe, Unparsed
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass


def _decode_count(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return min(given, 2**64)
    raise DecodeError("a number is wanted")


# A large file system has more bytes than are exact in JSON.
Count = Annotated[int, Via(_decode_count)]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Where a file system is mounted, and what it is; `network` ones hang when their server is gone."""

    point: AnyPath
    type: Plain
    source: AnyPath
    network: bool

    def __str__(self) -> str:
        return self.point.visible(500)

    @property
    def shown_source(self) -> str:
        return f"{self.type} of {self.source.visible(500)}"


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Room in bytes and in files; some file systems don't count their files, and say 0 of 0."""

    size: Count
    free: Count
    inodes: Count
    inodes_free: Count


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory that a run needs. Without a disk it could not be looked at, for the reason in `trouble`."""

    path: AnyPath
    mount: Mount
    disk: Disk | None = None
    trouble: Annotated[Untrusted, Key("error")] = NO_TEXT
    silent: bool = False
    read_only: bool = False
    writable: bool = False
    owner: int = 0

    def __str__(self) -> str:
        return self.path.visible(500)


def _decode_place(given: object) -> Place:
    """It comes flat: what the mount and the disk are stands beside the rest."""
    flat = decode(dict[str, Any], given)
    told = {**flat, "mount": {**flat, "point": flat.get("mount")}}
    if flat.get("silent") is True:
        told["error"] = "it does not answer"
    return decode(Place, {**told, "disk": None if "error" in told else flat}, strict=True)


def _decode_dead(given: object) -> dict[Mount, Untrusted]:
    mounts = decode(tuple[dict[str, Any], ...], given, strict=True)
    return {decode(Mount, each, strict=True): decode(Untrusted, each.get("why")) for each in mounts}


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A node's directories by role (workdir, home, tmp), and its mounts that don't answer, with the reason."""

    uid: int
    places: Mapping[Annotated[str, Matching("workdir|home|tmp")], Annotated[Place, Via(_decode_place)]]
    dead: Annotated[Mapping[Mount, Untrusted], Via(_decode_dead)]

    @property
    def workdir(self) -> Place | None:
        return self.places.get("workdir")


def parse_storage(answer: Answer) -> Storage:
    return decode_told(Storage, said(answer))


def parse_place(answer: Answer) -> Place:
    """The one directory that was asked about."""
    try:
        return _decode_place(said(answer))
    except DecodeError as error:
        raise Unparsed(f"what it printed can't be read: {error}") from None


def command(node: Node, what: str, *words: str, timeout: float) -> Command:
    """Nothing of the node's environment but its Python is needed, and -IS starts that in half the time."""
    return Command(argv=as_a_rank(node, "-ISc", SCRIPT, what, *words), timeout=timeout)


def look(node: Node) -> Command:
    """Every launch asks this: without `setup` lines, which may set TMPDIR, the agent itself can run it."""
    words, timeout = ("look", node.workdir or ""), MOUNT_SECONDS + 5
    if node.setup:
        return command(node, *words, timeout=timeout)
    return Command(argv=("storage", *words), timeout=timeout, source=SCRIPT)


STORAGE = Probe(name="storage", question=look, parse=parse_storage)
