"""Builds nodes from the entries of each node and the defaults of the cluster."""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from aboard.core.cluster.container import Container
from aboard.core.cluster.head_machine import HeadMachine, is_head_node
from aboard.core.cluster.hostfile import MAX_SLOTS, parse_hostfile
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import MAX_NAMES, Login, expand_logins, fold_names
from aboard.core.text.input_text import MAX_PORT, find_env_name_error, find_host_error, find_user_error
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.config_loader import LoadedConfig
    from aboard.config.schema.aboard_yaml import NodeDefaults, NodeSection

_PLAIN_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|(/[A-Za-z0-9_.+-]+)+")
_SLOTS_AT_END = re.compile(r"\sslots=([0-9]{1,5})\s*\Z")


@dataclass(frozen=True, kw_only=True)
class NodeEntry:
    """One node as the user wrote it: its name, its position, and its own settings."""

    name: str
    where: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def parse_node_names(names: "Sequence[str]") -> list[NodeEntry]:
    """The nodes of node sets on the command line."""
    entries: list[NodeEntry] = []
    problems: list[Problem] = []
    for text in names:
        where = escape_text(text)
        if "/" in text:
            fix = configuration.NODESET.fix("hostfile", path=text)
            problems.append(Problem(where=where, seen="this is neither a node set nor a .yaml file", fix=fix))
            continue
        try:
            entries += [_build_entry(login, where) for login in expand_logins(text, where=where)]
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(configuration.NODESET, problems)
    return entries


def parse_hostfile_entries(text: str, where: str) -> list[NodeEntry]:
    """The nodes of a DeepSpeed hostfile."""
    return [
        _build_entry(Login(name=node.name, user=node.user), where, slots=node.slots)
        for node in parse_hostfile(text, where=where)
    ]


def read_section_entries(config: "LoadedConfig") -> list[NodeEntry]:
    """The nodes under `cluster.nodes`."""
    entries: list[NodeEntry] = []
    problems: list[Problem] = []
    section = config.document.cluster
    for index, node in enumerate((section and section.nodes) or ()):
        where = config.where("cluster", "nodes", index)
        try:
            entries += _parse_line(node, where) if isinstance(node, str) else _expand_mapping(node, where)
        except InputError as error:
            problems += error.problems
        if len(entries) > MAX_NAMES:
            seen = f"more than {MAX_NAMES:,} nodes were given"
            problems.append(Problem(where=where, seen=seen, fix=configuration.CONFIG.fix("fewer")))
            break
    if problems:
        raise InputError(configuration.CONFIG, problems)
    return entries


def build_nodes(entries: "Sequence[NodeEntry]", config: "LoadedConfig | None", here: HeadMachine) -> tuple[Node, ...]:
    """The nodes, with the cluster's defaults applied and the head marked as local."""
    section = config.document.cluster if config else None
    nodes = _apply_defaults(entries, _read_node_fields(section) if section else {}, here)
    return _set_fabric_addresses(nodes, config.where("cluster", "fabric_address") if config else "")


def build_simple_nodes(section: Mapping[str, Any], here: HeadMachine) -> tuple[Node, ...] | None:
    """The nodes of a section `cluster` with only node sets and simple values; None if in doubt.

    Most files are simple, and importing pydantic takes longer than everything else before a launch connects. A section
    with errors is left to pydantic, which reports all of them.
    """
    values = {key: [value] if key in _LISTS and isinstance(value, str) else value for key, value in section.items()}
    if "nodes" not in values or not all(key in _PLAIN and _PLAIN[key](value) for key, value in values.items()):
        return None
    entries = [entry for text in values.pop("nodes") for entry in _parse_line(text, "")]
    if "setup" in values:
        values["setup"] = tuple(values["setup"])
    return tuple(_apply_defaults(entries, values, here))


def _apply_defaults(entries: "Sequence[NodeEntry]", defaults: Mapping[str, Any], here: HeadMachine) -> list[Node]:
    _refuse_duplicates(entries)
    return [
        replace(
            Node(name=entry.name, **{**defaults, **entry.settings}),
            interpreter=_choose_interpreter({**defaults, **entry.settings}),
            env={**defaults.get("env", {}), **entry.settings.get("env", {})},
            transport=TransportKind.LOCAL if _is_local(entry, here) else TransportKind.SSH,
        )
        for entry in entries
    ]


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_text(text) for text in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


_LISTS = ("nodes", "setup")
# What a value must be to skip pydantic: stricter than the schema, never laxer.
_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "nodes": _is_text_list,
    "setup": _is_text_list,
    "slots": lambda value: type(value) is int and 0 <= value <= MAX_SLOTS,
    "user": lambda value: isinstance(value, str) and find_user_error(value) is None,
    "port": lambda value: type(value) is int and 1 <= value <= MAX_PORT,
    "python": lambda value: isinstance(value, str) and _PLAIN_PROGRAM.fullmatch(value) is not None,
    "workdir": lambda value: _is_text(value) and value.startswith("/"),
    "env": lambda value: (
        isinstance(value, dict)
        and all(find_env_name_error(name) is None and (text == "" or _is_text(text)) for name, text in value.items())
    ),
}


def _is_local(entry: NodeEntry, here: HeadMachine) -> bool:
    """Only the entry's own settings count: a user or port for the whole cluster doesn't mean ssh to the head."""
    return is_head_node(Node(name=entry.name, **entry.settings), here)


def _choose_interpreter(values: Mapping[str, Any]) -> Interpreter | None:
    """The configured interpreter, or the one that `setup` puts on PATH; None if neither is set."""
    if "python" in values:
        return Interpreter(path=values["python"], origin=InterpreterSource.CONFIGURED)
    return Interpreter(path="python3", origin=InterpreterSource.SETUP) if values.get("setup") else None


def _build_entry(login: Login, where: str, **settings: Any) -> NodeEntry:
    user = {} if login.user is None else {"user": login.user}
    return NodeEntry(name=login.name, where=where, settings={**user, **settings})


def _parse_line(text: str, where: str) -> list[NodeEntry]:
    match = _SLOTS_AT_END.search(text)
    names, slots = (text[: match.start()].rstrip(), {"slots": int(match[1])}) if match else (text, {})
    if slots and slots["slots"] > MAX_SLOTS:
        seen = f"'{escape_text(text)}': a node can have at most {MAX_SLOTS:,} slots"
        raise InputError.of(configuration.CONFIG, where, seen, "slots", nodes=names)
    if "=" in names:
        seen = f"'{escape_text(text)}' is neither a node set nor 'NODES slots=N'"
        host = names.split()[0]
        raise InputError.of(configuration.CONFIG, where, seen, "slots", nodes=host if "=" not in host else "gpu[01-16]")
    return [_build_entry(login, where, **slots) for login in expand_logins(names, where=where)]


def _expand_mapping(node: "NodeSection", where: str) -> list[NodeEntry]:
    logins = expand_logins(node.name, where=where)
    if node.address is not None and len(logins) > 1:
        seen = f"{escape_text(node.name)} stands for {len(logins)} nodes, which can't share the address {node.address}"
        raise InputError.of(configuration.CONFIG, where, seen, "addresses")
    if node.user is not None and logins[0].user not in {None, node.user}:
        seen = f"the user is set twice: {logins[0].user} in the name, and {node.user}"
        raise InputError.of(configuration.CONFIG, where, seen, "name", name=logins[0].name)
    return [_build_entry(login, where, **_read_node_fields(node)) for login in logins]


def _read_node_fields(section: "NodeDefaults") -> dict[str, Any]:
    """The fields that are set, with the names and types of Node."""
    names = ("slots", "user", "port", "python", "workdir", "fabric_address", "address", "env", "setup", "container")
    values = {name: getattr(section, name, None) for name in names}
    if section.setup is not None:
        values["setup"] = tuple(section.setup)
    if (container := section.container) is not None:
        given: dict[str, Any] = container.model_dump(exclude_none=True)
        given.update({name: tuple(value) for name, value in given.items() if isinstance(value, list)})
        values["container"] = Container(**given)
    return {name: value for name, value in values.items() if value is not None}


def _refuse_duplicates(entries: "Sequence[NodeEntry]") -> None:
    first: dict[str, str] = {}
    duplicates: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        if entry.name in first:
            duplicates.setdefault((entry.where, first[entry.name]), []).append(entry.name)
        first.setdefault(entry.name, entry.where)
    if not duplicates:
        return
    problems: list[Problem] = []
    for (where, other), names in duplicates.items():
        verb = "is" if len(names) == 1 else "are"
        seen = f"{fold_names(names)} {verb} listed twice" + (f", also at {other}" if other != where else "")
        problems.append(Problem(where=where, seen=seen, fix=configuration.NODE_TWICE.fix(nodes=fold_names(names))))
    raise InputError(configuration.NODE_TWICE, problems)


def _set_fabric_addresses(nodes: "Sequence[Node]", where: str) -> tuple[Node, ...]:
    """Replaces {name} in each node's pattern. Not with str.format, which would read attributes."""
    addressed: list[Node] = []
    owners: dict[str, str] = {}
    for node in nodes:
        address = node.fabric_address and node.fabric_address.replace("{name}", node.name)
        if address and (problem := find_host_error(address)):
            seen = f"fabric_address of {node.name}: {problem}"
            raise InputError.of(configuration.CONFIG, where, seen, "own-fabric", node=node.name)
        if address and address in owners:
            seen = f"{owners[address]} and {node.name} would both have the fabric_address {address}"
            raise InputError.of(configuration.CONFIG, where, seen, "fabric-pattern")
        if address:
            owners[address] = node.name
        addressed.append(replace(node, fabric_address=address))
    return tuple(addressed)
