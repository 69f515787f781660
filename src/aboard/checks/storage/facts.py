"""What a node told of its storage, as values."""

from collections.abc import Mapping
from typing import Any

from aboard.checks.scripted import as_a_rank, number, said, word
from aboard.checks.storage.script import MOUNT_SECONDS, SCRIPT
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Probe, Unparsed
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Where a file system is mounted, and what it is; `network` ones hang when their server is gone."""

    point: str
    type: str
    source: str
    network: bool


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Room in bytes and in files; some file systems don't count their files, and say 0 of 0."""

    size: int
    free: int
    inodes: int
    inodes_free: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory that a run needs. Without a disk it could not be looked at, for the reason in `trouble`."""

    path: str
    mount: Mount
    disk: Disk | None = None
    trouble: str = ""
    silent: bool = False
    read_only: bool = False
    writable: bool = False
    owner: int = 0


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A node's directories by role (workdir, home, tmp), and its mounts that don't answer, with the reason."""

    uid: int
    places: Mapping[str, Place]
    dead: Mapping[Mount, str]

    @property
    def workdir(self) -> Place | None:
        return self.places.get("workdir")


def parse_storage(answer: Answer) -> Storage:
    told = said(answer)
    places, dead = told.get("places"), told.get("dead")
    if not isinstance(places, dict) or not isinstance(dead, list):
        raise Unparsed(word(told, "error"))
    return Storage(
        uid=number(told, "uid"),
        places={role: _place(_object(each)) for role, each in places.items() if role in ROLES},
        dead={_mount(each, "point"): word(each, "why") for each in map(_object, dead)},
    )


def parse_place(answer: Answer) -> Place:
    """The one directory that was asked about."""
    return _place(said(answer))


def command(node: Node, what: str, *words: str, timeout: float) -> Command:
    """Nothing of the node's environment but its Python is needed, and -IS starts that in half the time."""
    return Command(argv=as_a_rank(node, "-ISc", SCRIPT, what, *words), timeout=timeout)


def look(node: Node) -> Command:
    """Every launch asks this: without `setup` lines, which may set TMPDIR, the agent itself can run it."""
    words, timeout = ("look", node.workdir or ""), MOUNT_SECONDS + 5
    if node.setup:
        return command(node, *words, timeout=timeout)
    return Command(argv=("storage", *words), timeout=timeout, source=SCRIPT)


ROLES = ("workdir", "home", "tmp")
STORAGE = Probe(name="storage", question=look, parse=parse_storage)


def _place(told: Mapping[str, Any]) -> Place:
    path, mount = word(told, "path"), _mount(told, "mount")
    if told.get("silent") is True:
        return Place(path=path, mount=mount, silent=True, trouble="it does not answer")
    if "error" in told:
        return Place(path=path, mount=mount, trouble=word(told, "error"))
    disk = Disk(
        size=number(told, "size"),
        free=number(told, "free"),
        inodes=number(told, "inodes"),
        inodes_free=number(told, "inodes_free"),
    )
    return Place(
        path=path,
        mount=mount,
        disk=disk,
        read_only=told.get("read_only") is True,
        writable=told.get("writable") is True,
        owner=number(told, "owner"),
    )


def _mount(told: Mapping[str, Any], point: str) -> Mount:
    return Mount(
        point=word(told, point),
        type=word(told, "type"),
        source=word(told, "source"),
        network=told.get("network") is True,
    )


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unparsed("what it printed can't be read")
    return value
