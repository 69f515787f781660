"""The nodes of a check: a table of where they differ, and one line of what they have in common."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from aboard.checks import host
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.nodeset import fold
from aboard.core.reach import Reached

# Above this, nodes that are alike share a row.
ONE_BY_ONE = 16
GIB = 1024**3

# What may be equal on all nodes, and how it is said when it is.
TRAITS = {
    "user": "user {}",
    "kernel": "kernel {}",
    "python": "Python {}",
    "cores": "{} cores",
    "memory": "{}",
    "accelerators": "accelerators: {}",
}


class CheckTable:
    """One row a node, or one for all that are alike when there are many; equal columns become one line below."""

    def __init__(self, facts: Facts, *, every_node: bool) -> None:
        self._facts = facts
        self._met = {name: contact for name, contact in facts.contacts.items() if isinstance(contact, Reached)}
        self._silent = [node.name for node in facts.cluster if node.name not in self._met]
        self._traits = {name: _traits(facts, name, contact) for name, contact in self._met.items()}
        self._one_by_one = every_node or len(facts.cluster) <= ONE_BY_ONE

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        common = self._common()
        shown = [trait for trait in TRAITS if trait not in common]
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("node", "host", *shown):
            table.add_column(column)
        for column in ("round trip", "clock"):
            table.add_column(column, justify="right")
        for names in self._rows(shown):
            table.add_row(*self._row(names, shown))
        if self._silent:
            style = "red"
            many = len(self._silent)
            table.add_row(
                Text(fold(self._silent), style), Text("no answer" if many == 1 else f"{many} no answer", style)
            )
        yield table
        if common:
            said = ", ".join(TRAITS[trait].format(value) for trait, value in common.items())
            whose = {1: "it has", 2: "both have"}.get(len(self._met), f"all {len(self._met)} have")
            yield Text(f"{whose}: {said}", style="dim")

    def _common(self) -> dict[str, str]:
        """The traits that all nodes that answered share."""
        return {
            trait: values.pop()
            for trait in TRAITS
            if len(values := {traits[trait] for traits in self._traits.values()}) == 1
        }

    def _rows(self, shown: list[str]) -> Iterable[list[str]]:
        if self._one_by_one:
            return [[name] for name in self._met]
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, traits in self._traits.items():
            alike.setdefault(tuple(traits[trait] for trait in shown), []).append(name)
        return alike.values()

    def _row(self, names: list[str], shown: list[str]) -> list[str | Text]:
        first = names[0]
        contacts = [self._met[name] for name in names]
        trip = max(contact.round_trip for contact in contacts)
        offset = max((contact.clock_offset for contact in contacts), key=abs)
        alone = len(names) == 1
        return [
            fold(names),
            Text(_where(self._facts.cluster.node(first), contacts[0]) if alone else f"{len(names)} nodes"),
            *(Text(self._traits[first][trait]) for trait in shown),
            ("" if alone else "≤ ") + milliseconds(trip),
            signed(offset),
        ]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def signed(seconds: float) -> str:
    return f"{seconds:+.1f} s" if abs(seconds) >= 1 else f"{seconds * 1000:+.1f} ms"


def _where(node: Node, contact: Reached) -> str:
    """The host's own name where it isn't the node's, and the address that was dialled."""
    address = contact.address or ("this machine" if node.local else "")
    return address if contact.hostname == node.name else f"{contact.hostname} {address}".strip()


def _traits(facts: Facts, name: str, contact: Reached) -> dict[str, str]:
    cores = facts.of(host.CORES).get(name)
    memory = facts.of(host.MEMORY).get(name)
    accelerators = facts.of(host.ACCELERATORS).get(name)
    return {
        "user": contact.user,
        "kernel": facts.of(host.KERNEL).get(name, "?"),
        "python": contact.python,
        "cores": "?" if cores is None else str(cores),
        "memory": "?" if memory is None else f"{memory / GIB:.0f} GiB",
        "accelerators": "?" if accelerators is None else _models(accelerators),
    }


def _models(accelerators: tuple[str, ...]) -> str:
    kinds = {model: accelerators.count(model) for model in accelerators}
    return ", ".join(f"{count} × {model}" for model, count in kinds.items()) or "none"
