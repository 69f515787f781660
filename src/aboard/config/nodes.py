"""From what was written of each node, and of the cluster as a whole, to nodes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from aboard.core.head import Here, is_here
from aboard.core.hostfile import MAX_SLOTS, read_hostfile
from aboard.core.interpreter import Interpreter, Origin
from aboard.core.node import Container, Node
from aboard.core.nodeset import MAX_NAMES, Login, expand_logins, fold
from aboard.core.words import MAX_PORT, env_name_trouble, host_trouble, user_trouble, visible
from aboard.diagnoses import InputError, Problem, configuration
from aboard.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.document import Written
    from aboard.config.sections import Defaults, NodeSection

_PLAIN_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|(/[A-Za-z0-9_.+-]+)+")
_WITH_SLOTS = re.compile(r"(.*?)\s+slots=([0-9]{1,5})\s*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One node as it was written: its name, where that stands, and what it says of itself."""

    name: str
    where: str
    given: Mapping[str, Any] = field(default_factory=dict)


def named_entries(names: "Sequence[str]") -> list[Entry]:
    """The nodes of node sets on the command line."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    for text in names:
        where = visible(text)
        if "/" in text:
            fix = configuration.NODESET.fix("hostfile", path=text)
            problems.append(Problem(where=where, seen="this is no node set and no .yaml file", fix=fix))
            continue
        try:
            entries += [_entry(login, where) for login in expand_logins(text, where=where)]
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(configuration.NODESET, problems)
    return entries


def hostfile_entries(text: str, where: str) -> list[Entry]:
    """The nodes of a DeepSpeed hostfile."""
    return [
        _entry(Login(name=node.name, user=node.user), where, slots=node.slots)
        for node in read_hostfile(text, where=where)
    ]


def section_entries(written: "Written") -> list[Entry]:
    """The nodes under `cluster.nodes`."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    section = written.document.cluster
    for index, node in enumerate((section and section.nodes) or ()):
        where = written.where("cluster", "nodes", index)
        try:
            entries += _line(node, where) if isinstance(node, str) else _mapping(node, where)
        except InputError as error:
            problems += error.problems
        if len(entries) > MAX_NAMES:
            problems.append(
                Problem(where=where, seen=f"more than {MAX_NAMES:,} nodes", fix=configuration.CONFIG.fix("fewer"))
            )
            break
    if problems:
        raise InputError(configuration.CONFIG, problems)
    return entries


def fill(entries: "Sequence[Entry]", written: "Written | None", here: Here) -> tuple[Node, ...]:
    """The nodes, with the cluster's values where an entry has none, and the head marked as local."""
    section = written.document.cluster if written else None
    nodes = _fill(entries, _given(section) if section else {}, here)
    return _with_fabric(nodes, written.where("cluster", "fabric_address") if written else "")


def plain_nodes(section: Mapping[str, Any], here: Here) -> tuple[Node, ...] | None:
    """The nodes of a section `cluster` that has node sets and the simplest values only; None if in any doubt.

    Most files are like that, and pydantic takes longer to import than all else that a launch does before it dials.
    Whatever has a mistake in it is left to pydantic, which names all of them.
    """
    values = {key: [value] if key in _LISTS and isinstance(value, str) else value for key, value in section.items()}
    if "nodes" not in values or not all(key in _PLAIN and _PLAIN[key](value) for key, value in values.items()):
        return None
    entries = [entry for text in values.pop("nodes") for entry in _line(text, "")]
    if "setup" in values:
        values["setup"] = tuple(values["setup"])
    return tuple(_fill(entries, values, here))


def _fill(entries: "Sequence[Entry]", defaults: Mapping[str, Any], here: Here) -> list[Node]:
    _refuse_twins(entries)
    return [
        replace(
            Node(name=entry.name, **{**defaults, **entry.given}),
            interpreter=_configured({**defaults, **entry.given}),
            env={**defaults.get("env", {}), **entry.given.get("env", {})},
            local=_is_local(entry, here),
        )
        for entry in entries
    ]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_text(text) for text in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


_LISTS = ("nodes", "setup")
# What a value must be to be taken as it is: stricter than the sections, never laxer.
_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "nodes": _is_texts,
    "setup": _is_texts,
    "slots": lambda value: type(value) is int and 0 <= value <= MAX_SLOTS,
    "user": lambda value: isinstance(value, str) and user_trouble(value) is None,
    "port": lambda value: type(value) is int and 1 <= value <= MAX_PORT,
    "python": lambda value: isinstance(value, str) and _PLAIN_PROGRAM.fullmatch(value) is not None,
    "workdir": lambda value: _is_text(value) and value.startswith("/"),
    "env": lambda value: (
        isinstance(value, dict)
        and all(env_name_trouble(name) is None and (text == "" or _is_text(text)) for name, text in value.items())
    ),
}


def _is_local(entry: Entry, here: Here) -> bool:
    """Judged by its own words: a user or port for the whole cluster doesn't ask for ssh to oneself."""
    return is_here(Node(name=entry.name, **entry.given), here)


def _configured(given: Mapping[str, Any]) -> Interpreter | None:
    """The interpreter that was written down, or that the `setup` lines find; None leaves the choice open."""
    if "python" in given:
        return Interpreter(path=given["python"], origin=Origin.CONFIGURED)
    return Interpreter(path="python3", origin=Origin.SETUP) if given.get("setup") else None


def _entry(login: Login, where: str, **given: Any) -> Entry:
    user = {} if login.user is None else {"user": login.user}
    return Entry(name=login.name, where=where, given={**user, **given})


def _line(text: str, where: str) -> list[Entry]:
    match = _WITH_SLOTS.fullmatch(text)
    names, slots = (match[1], {"slots": int(match[2])}) if match else (text, {})
    if slots and slots["slots"] > MAX_SLOTS:
        seen = f"'{visible(text)}': {MAX_SLOTS:,} slots is the most a node can have"
        raise InputError(
            configuration.CONFIG, [Problem(where=where, seen=seen, fix=configuration.CONFIG.fix("slots", nodes=names))]
        )
    if "=" in names:
        seen = f"'{visible(text)}' is no node set and no 'NODES slots=N'"
        host = names.split()[0]
        fix = configuration.CONFIG.fix("slots", nodes=host if "=" not in host else "gpu[01-16]")
        raise InputError(configuration.CONFIG, [Problem(where=where, seen=seen, fix=fix)])
    return [_entry(login, where, **slots) for login in expand_logins(names, where=where)]


def _mapping(node: "NodeSection", where: str) -> list[Entry]:
    logins = expand_logins(node.name, where=where)
    if node.address is not None and len(logins) > 1:
        seen = f"{visible(node.name)} is {len(logins)} nodes, which can't share the address {node.address}"
        raise InputError(
            configuration.CONFIG, [Problem(where=where, seen=seen, fix=configuration.CONFIG.fix("addresses"))]
        )
    if node.user is not None and logins[0].user not in {None, node.user}:
        seen = f"the user is given twice: {logins[0].user} in the name, and {node.user}"
        fix = configuration.CONFIG.fix("name", name=logins[0].name)
        raise InputError(configuration.CONFIG, [Problem(where=where, seen=seen, fix=fix)])
    return [_entry(login, where, **_given(node)) for login in logins]


def _given(written: "Defaults") -> dict[str, Any]:
    """What was given, under the names that Node has and as the values that it holds."""
    names = ("slots", "user", "port", "python", "workdir", "fabric_address", "address", "env", "setup", "container")
    given = {name: getattr(written, name, None) for name in names}
    if written.setup is not None:
        given["setup"] = tuple(written.setup)
    if (box := written.container) is not None:
        given["container"] = Container(runtime=box.runtime, image=box.image, options=tuple(box.options or ()))
    return {name: value for name, value in given.items() if value is not None}


def _refuse_twins(entries: "Sequence[Entry]") -> None:
    first: dict[str, str] = {}
    twins: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        if entry.name in first:
            twins.setdefault((entry.where, first[entry.name]), []).append(entry.name)
        first.setdefault(entry.name, entry.where)
    if not twins:
        return
    problems: list[Problem] = []
    for (where, other), names in twins.items():
        seen = f"{fold(names)} is named twice" + (f", also at {other}" if other != where else "")
        problems.append(Problem(where=where, seen=seen, fix=configuration.NODE_TWICE.fix(nodes=fold(names))))
    raise InputError(configuration.NODE_TWICE, problems)


def _with_fabric(nodes: "Sequence[Node]", where: str) -> tuple[Node, ...]:
    """Puts each node's name into its pattern. Only {name} is looked at: str.format would read attributes."""
    placed: list[Node] = []
    taken: dict[str, str] = {}
    for node in nodes:
        address = node.fabric_address and node.fabric_address.replace("{name}", node.name)
        if address and (trouble := host_trouble(address)):
            seen = f"fabric_address of {node.name}: {trouble}"
            fix = configuration.CONFIG.fix("own-fabric", node=node.name)
            raise InputError(configuration.CONFIG, [Problem(where=where, seen=seen, fix=fix)])
        if address and address in taken:
            seen = f"{taken[address]} and {node.name} would both have the fabric_address {address}"
            fix = configuration.CONFIG.fix("fabric-pattern")
            raise InputError(configuration.CONFIG, [Problem(where=where, seen=seen, fix=fix)])
        if address:
            taken[address] = node.name
        placed.append(replace(node, fabric_address=address))
    return tuple(placed)
