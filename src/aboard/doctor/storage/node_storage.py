"""A node's storage as values."""

from collections.abc import Mapping
from typing import Annotated, Any

from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.decoding import CustomDecoder, DecodeError, JsonKey, Matching, decode
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.shared.script_probes import AnyPath, Plain, decode_script_output, parse_script_output
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script
from aboard.node_scripts.storage_survey import MOUNT_SECONDS


def _decode_count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, 2**64)
    raise DecodeError("expected a number")


# A large file system has more bytes than are exact in JSON.
Count = Annotated[int, CustomDecoder(_decode_count)]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A mounted file system; `network` ones hang when their server is gone."""

    point: AnyPath
    type: Plain
    source: AnyPath
    network: bool

    def __str__(self) -> str:
        return self.point.visible(500)

    @property
    def shown_source(self) -> str:
        return f"{self.type} from {self.source.visible(500)}"


@dataclass(frozen=True, kw_only=True)
class DiskSpace:
    """Space in bytes and inodes; some file systems don't count inodes and report 0 of 0."""

    size: Count
    free: Count
    inodes: Count
    inodes_free: Count


@dataclass(frozen=True, kw_only=True)
class NodeDirectory:
    """A directory that a run needs. Without `disk` it could not be inspected, for the reason in `trouble`."""

    path: AnyPath
    mount: Mount
    disk: DiskSpace | None = None
    trouble: Annotated[Untrusted, JsonKey("error")] = NO_TEXT
    silent: bool = False
    read_only: bool = False
    writable: bool = False
    owner: int = 0

    def __str__(self) -> str:
        return self.path.visible(500)


def _decode_directory(value: object) -> NodeDirectory:
    """Decodes the flat object, in which the mount's and the disk's fields are beside the rest."""
    flat = decode(dict[str, Any], value)
    fields = {**flat, "mount": {**flat, "point": flat.get("mount")}}
    if flat.get("silent") is True:
        fields["error"] = "it does not respond"
    return decode(NodeDirectory, {**fields, "disk": None if "error" in fields else flat}, strict=True)


def _decode_dead_mounts(value: object) -> dict[Mount, Untrusted]:
    mounts = decode(tuple[dict[str, Any], ...], value, strict=True)
    return {decode(Mount, each, strict=True): decode(Untrusted, each.get("why")) for each in mounts}


@dataclass(frozen=True, kw_only=True)
class NodeStorage:
    """A node's directories by role (workdir, home, tmp), and its dead mounts with the reason."""

    uid: int
    places: Mapping[
        Annotated[str, Matching("workdir|home|tmp")], Annotated[NodeDirectory, CustomDecoder(_decode_directory)]
    ]
    dead: Annotated[Mapping[Mount, Untrusted], CustomDecoder(_decode_dead_mounts)]

    @property
    def workdir(self) -> NodeDirectory | None:
        return self.places.get("workdir")


def parse_storage(answer: ProbeAnswer) -> NodeStorage:
    return decode_script_output(NodeStorage, parse_script_output(answer))


def parse_directory(answer: ProbeAnswer) -> NodeDirectory:
    """The directory that was probed."""
    try:
        return _decode_directory(parse_script_output(answer))
    except DecodeError as error:
        raise ProbeParseError(f"its output can't be parsed: {error}") from None


def build_script_command(node: Node, what: str, *words: str, timeout: float) -> ProbeCommand:
    """The script needs only the node's Python, and -IS halves its start-up time.

    It runs outside of a container, which sees the same file systems through its binds.
    """
    python = node.rank_python if node.container is None else node.python
    argv = (python, "-ISc", read_script("storage_survey"), what, *words)
    return ProbeCommand(argv=prepend_setup(node, argv), timeout=timeout)


def build_storage_command(node: Node) -> ProbeCommand:
    """Every launch runs this; without `setup` lines, which may set TMPDIR, the agent itself can run it."""
    words, timeout = ("look", node.workdir or ""), MOUNT_SECONDS + 5
    if node.setup:
        return build_script_command(node, *words, timeout=timeout)
    return ProbeCommand(argv=("storage", *words), timeout=timeout, source=read_script("storage_survey"))


STORAGE = Probe(name="storage", question=build_storage_command, parse=parse_storage)
