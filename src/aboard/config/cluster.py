"""The one way from what a user wrote to a Cluster: names, a hostfile, aboard.yaml files, filters and overrides."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.config.here import sources_toward
from aboard.config.nodes import Entry, fill, hostfile_entries, named_entries, plain_nodes, section_entries
from aboard.config.read import read_text
from aboard.core.cluster import THIS_MACHINE, Cluster
from aboard.core.filters import pick
from aboard.core.head import LOCALHOST, Here, is_loopback, place_head
from aboard.core.writes import Writes
from aboard.diagnoses import NO_FIX, InputError, Problem, configuration
from aboard.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aboard.config.document import Written
    from aboard.core.node import Node

DEFAULT_FILE = "aboard.yaml"
_YAML = (".yaml", ".yml")


def load_cluster(
    sources: "Sequence[str]" = (),
    *,
    hostfile: str | None = None,
    include: str = "",
    exclude: str = "",
    sets: "Sequence[str]" = (),
    here: Here,
    toward: "Callable[[Sequence[str]], Sequence[str]]" = sources_toward,
) -> Cluster:
    """The cluster of node sets and .yaml files; with none given that of ./aboard.yaml, else this machine alone."""
    files = [source for source in sources if source.endswith(_YAML)]
    names = [source for source in sources if not source.endswith(_YAML)]
    if not sources and hostfile is None and Path(DEFAULT_FILE).exists():
        files = [DEFAULT_FILE]
    if len(files) == len(sources or files) == 1 and hostfile is None and not sets:
        with suppress(InputError):
            found, alone = _read_plain(files[0], here)
            if found is not None and alone:
                picked = pick(found, include=include, exclude=exclude)
                return Cluster(nodes=_with_head(picked, here, toward), source=files[0])
    written = _written(files, sets)
    origin = _origin(names, hostfile, written)
    nodes = pick(fill(_entries(origin, written), written, here), include=include, exclude=exclude)
    return Cluster(nodes=_with_head(nodes, here, toward), source=origin.source, writes=_writes(written))


def guess_nodes(
    sources: "Sequence[str]" = (), *, hostfile: str | None = None, include: str = "", exclude: str = "", here: Here
) -> "tuple[Node, ...]":
    """The nodes as far as they can be known without pydantic, for a launch that dials while it reads the rest.

    Nothing where that is not plain, or where there is any mistake.
    """
    try:
        if sources or hostfile is not None or not Path(DEFAULT_FILE).exists():
            if any(source.endswith(_YAML) for source in sources):
                return ()
            return load_cluster(sources, hostfile=hostfile, include=include, exclude=exclude, here=here).nodes
        nodes = _read_plain(DEFAULT_FILE, here)[0]
        return () if nodes is None else pick(nodes, include=include, exclude=exclude)
    except InputError:
        return ()


def _read_plain(file: str, here: Here) -> "tuple[tuple[Node, ...] | None, bool]":
    """The nodes of a file whose section `cluster` is plain, and whether the file has no other section."""
    from aboard.config.tree import VERBATIM, plain, read_tree  # noqa: PLC0415 - PyYAML, for those who have a file

    document = plain(read_tree(read_text(file, fix=NO_FIX), file=file), verbatim=VERBATIM)
    section = document.get("cluster")
    return (plain_nodes(section, here) if isinstance(section, dict) else None), len(document) == 1


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """What names the nodes: names, a hostfile's path, or with neither the file's own section."""

    source: str
    where: str
    names: tuple[str, ...] = ()
    hostfile: str | None = None


def _written(files: "Sequence[str]", sets: "Sequence[str]") -> "Written | None":
    if not files and not sets:
        return None
    # Not at the top: pydantic takes 100 ms to import, which `aboard check n[1-4]` needn't wait for.
    from aboard.config.document import load_document  # noqa: PLC0415

    return load_document(files, sets)


def _origin(names: "Sequence[str]", hostfile: str | None, written: "Written | None") -> _Origin:
    """The one thing that names the nodes; two are an error, for neither is more right than the other."""
    origins: list[_Origin] = []
    if names:
        origins.append(_Origin(source="the command line", where="the command line", names=tuple(names)))
    if hostfile is not None:
        origins.append(_Origin(source=hostfile, where=f"--hostfile {hostfile}", hostfile=hostfile))
    if written is not None:
        origins += _section_origins(written)
    if len(origins) > 1:
        first, second = origins[:2]
        seen = f"the nodes are given twice, by {first.where} and by {second.where}"
        fix = configuration.CLUSTER_TWICE.fix()
        raise InputError(configuration.CLUSTER_TWICE, [Problem(where="cluster", seen=seen, fix=fix)])
    return origins[0] if origins else _Origin(source=THIS_MACHINE, where="", names=(LOCALHOST,))


def _section_origins(written: "Written") -> list[_Origin]:
    section = written.document.cluster
    origins: list[_Origin] = []
    if section is not None and section.nodes is not None:
        where = written.where("cluster", "nodes")
        origins.append(_Origin(source=where.partition(":")[0], where=f"cluster.nodes ({where})"))
    if section is not None and section.hostfile is not None:
        where = written.where("cluster", "hostfile")
        path = str(Path(written.base("cluster", "hostfile")) / section.hostfile)
        origins.append(_Origin(source=path, where=f"cluster.hostfile ({where})", hostfile=path))
    return origins


def _entries(origin: _Origin, written: "Written | None") -> list[Entry]:
    if origin.hostfile is not None:
        text = read_text(origin.hostfile, fix=configuration.FILE.fix("hostfile"))
        return hostfile_entries(text, origin.hostfile)
    if written is not None and not origin.names:
        return section_entries(written)
    return named_entries(origin.names)


def _writes(written: "Written | None") -> Writes | None:
    section = written.document.run if written else None
    return Writes(path=section.output, size=section.writes) if section else None


def _with_head(
    nodes: "tuple[Node, ...]", here: Here, toward: "Callable[[Sequence[str]], Sequence[str]]"
) -> "tuple[Node, ...]":
    peers = [node.target for node in nodes if not node.local]
    asked = peers and any(node.local and is_loopback(node.target) for node in nodes)
    return place_head(nodes, here, toward(peers) if asked else ())
