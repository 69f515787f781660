"""Loads a Cluster from node names, a hostfile, aboard.yaml files, filters and overrides."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.config.input_files import YAML_SUFFIXES, FoundFile, find_default_files, read_text
from aboard.config.node_entries import (
    NodeEntry,
    build_nodes,
    build_simple_nodes,
    parse_hostfile_entries,
    parse_node_names,
    read_section_entries,
)
from aboard.config.this_machine import find_source_addresses
from aboard.core.cluster.cluster import COMMAND_LINE, THIS_MACHINE, Cluster, PlannedWrites
from aboard.core.cluster.head_machine import LOCALHOST, HeadMachine, assign_head_address, is_loopback
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_filters import filter_nodes
from aboard.core.slurm.job_nodes import assign_srun, format_job_source, refuse_mixed_nodes
from aboard.diagnoses import NO_FIX, InputError
from aboard.diagnoses.usage import configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aboard.config.config_loader import LoadedConfig
    from aboard.core.slurm.allocation import SlurmAllocation


def load_cluster(
    sources: "Sequence[str]" = (),
    *,
    hostfile: str | None = None,
    include: str = "",
    exclude: str = "",
    sets: "Sequence[str]" = (),
    here: HeadMachine,
    toward: "Callable[[Sequence[str]], Sequence[str]]" = find_source_addresses,
    allocation: "SlurmAllocation | None" = None,
    allow_file: bool = False,
) -> Cluster:
    """The cluster of node sets and .yaml files; with neither, that of ./aboard.yaml, if what it names is allowed.

    If none of these names nodes, the cluster is the Slurm job, and outside a job this machine alone.
    """
    files = [source for source in sources if source.endswith(YAML_SUFFIXES)]
    names = [source for source in sources if not source.endswith(YAML_SUFFIXES)]
    if not sources and hostfile is None:
        files = find_default_files(allow_file=allow_file)
    if len(files) == len(sources or files) == 1 and hostfile is None and not sets:
        with suppress(InputError):
            simple_nodes, is_only_section = _read_plain(files[0], here)
            if simple_nodes is not None and is_only_section:
                picked = _pick_nodes(simple_nodes, here, allocation, include=include, exclude=exclude)
                return Cluster(nodes=_add_head(picked, here, toward), source=files[0])
    config = _load_config(files, sets)
    node_source = _find_node_source(names, hostfile, config, allocation)
    nodes = build_nodes(_read_entries(node_source, config), config, here)
    nodes = _pick_nodes(nodes, here, allocation, include=include, exclude=exclude)
    nodes = _add_head(nodes, here, toward)
    if config is None:
        return Cluster(nodes=nodes, source=node_source.source)
    from aboard.config.config_loader import build_notify_settings, build_recovery_request  # noqa: PLC0415 - as in _load_config

    return Cluster(
        nodes=nodes,
        source=node_source.source,
        writes=_build_writes(config),
        recovery=build_recovery_request(config),
        notify=build_notify_settings(config),
        textfile="" if config.document.metrics is None else config.document.metrics.textfile,
    )


def guess_nodes(
    sources: "Sequence[str]" = (),
    *,
    hostfile: str | None = None,
    include: str = "",
    exclude: str = "",
    here: HeadMachine,
    allocation: "SlurmAllocation | None" = None,
    allow_file: bool = False,
) -> tuple[Node, ...]:
    """The nodes as far as they can be read without pydantic, so that a launch connects while it reads the rest.

    Empty if the configuration is not simple, or has an error.
    """
    try:
        files = [] if sources or hostfile is not None else find_default_files(allow_file=allow_file)
        if not files:
            if any(source.endswith(YAML_SUFFIXES) for source in sources):
                return ()
            return load_cluster(
                sources, hostfile=hostfile, include=include, exclude=exclude, here=here, allocation=allocation
            ).nodes
        nodes = _read_plain(files[0], here)[0]
        return () if nodes is None else _pick_nodes(nodes, here, allocation, include=include, exclude=exclude)
    except InputError:
        return ()


def _read_plain(file: str, here: HeadMachine) -> "tuple[tuple[Node, ...] | None, bool]":
    """The nodes of a file whose section `cluster` is simple, and whether the file has no other section."""
    # PyYAML is only needed for a file.
    from aboard.config.allowed_files import read_config_tree  # noqa: PLC0415 - the reason is above
    from aboard.config.yaml_tree import VERBATIM, convert_to_builtins  # noqa: PLC0415 - the reason is above

    document = convert_to_builtins(read_config_tree(file, fix=NO_FIX), verbatim=VERBATIM)
    section = document.get("cluster")
    return (build_simple_nodes(section, here) if isinstance(section, dict) else None), len(document) == 1


@dataclass(frozen=True, kw_only=True)
class _NodeSource:
    """Where the nodes come from: names, a hostfile, or, with neither, the section of the file."""

    source: str
    where: str
    names: tuple[str, ...] = ()
    hostfile: str | None = None


def _load_config(files: "Sequence[str]", sets: "Sequence[str]") -> "LoadedConfig | None":
    if not files and not sets:
        return None
    # Imported here: pydantic takes 100 ms, which `aboard check n[1-4]` doesn't need.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415

    return load_config_files(files, sets)


def _find_node_source(
    names: "Sequence[str]", hostfile: str | None, config: "LoadedConfig | None", allocation: "SlurmAllocation | None"
) -> _NodeSource:
    """The only source of nodes; two are an error, because neither takes precedence."""
    node_sources: list[_NodeSource] = []
    if names:
        node_sources.append(_NodeSource(source=COMMAND_LINE, where=COMMAND_LINE, names=tuple(names)))
    if hostfile is not None:
        node_sources.append(_NodeSource(source=hostfile, where=f"--hostfile {hostfile}", hostfile=hostfile))
    if config is not None:
        node_sources += _list_section_sources(config)
    if len(node_sources) > 1:
        first, second = node_sources[:2]
        seen = f"the nodes were specified twice, by {first.where} and by {second.where}"
        raise InputError.of(configuration.CLUSTER_TWICE, "cluster", seen)
    if node_sources:
        return node_sources[0]
    if allocation is not None:
        job = format_job_source(allocation)
        return _NodeSource(source=job, where=job, names=tuple(node.name for node in allocation.nodes))
    return _NodeSource(source=THIS_MACHINE, where="", names=(LOCALHOST,))


def _list_section_sources(config: "LoadedConfig") -> list[_NodeSource]:
    section = config.document.cluster
    node_sources: list[_NodeSource] = []
    if section is not None and section.nodes is not None:
        where = config.where("cluster", "nodes")
        node_sources.append(_NodeSource(source=where.partition(":")[0], where=f"cluster.nodes ({where})"))
    if section is not None and section.hostfile is not None:
        where = config.where("cluster", "hostfile")
        path = str(Path(config.base("cluster", "hostfile")) / section.hostfile)
        node_sources.append(_NodeSource(source=path, where=f"cluster.hostfile ({where})", hostfile=FoundFile(path)))
    return node_sources


def _read_entries(node_source: _NodeSource, config: "LoadedConfig | None") -> list[NodeEntry]:
    if node_source.hostfile is not None:
        text = read_text(node_source.hostfile, fix=configuration.FILE.fix("hostfile"))
        return parse_hostfile_entries(text, node_source.hostfile)
    if config is not None and not node_source.names:
        return read_section_entries(config)
    return parse_node_names(node_source.names)


def _pick_nodes(
    nodes: tuple[Node, ...], here: HeadMachine, allocation: "SlurmAllocation | None", *, include: str, exclude: str
) -> tuple[Node, ...]:
    """The nodes that remain after the filters; a job's nodes are reached by srun."""
    if allocation is None:
        return filter_nodes(nodes, include=include, exclude=exclude)
    picked = filter_nodes(assign_srun(nodes, allocation, here.user), include=include, exclude=exclude)
    refuse_mixed_nodes(picked, allocation)
    return picked


def _build_writes(config: "LoadedConfig") -> PlannedWrites | None:
    section = config.document.run
    return PlannedWrites(path=section.output, size=section.writes) if section else None


def _add_head(
    nodes: tuple[Node, ...], here: HeadMachine, toward: "Callable[[Sequence[str]], Sequence[str]]"
) -> tuple[Node, ...]:
    peers = [node.target for node in nodes if node.transport is not TransportKind.LOCAL]
    needs_route = peers and any(node.transport is TransportKind.LOCAL and is_loopback(node.target) for node in nodes)
    return assign_head_address(nodes, here, toward(peers) if needs_route else ())
