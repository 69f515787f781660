"""The node table of a check: the status of each subject, where nodes differ, and what they have in common."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.findings.subject_results import SubjectResult
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.node_grid import ONE_BY_ONE, GridRow, NodeGrid
from aboard.commands.shared.status_marks import StatusMark, find_worst, mark_node
from aboard.core.cluster.contact import ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.probes.facts import Facts
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.doctor.host import subject as host

# Traits that may be equal on all nodes, and their text if they are.
TRAITS = {
    "user": "user {}",
    "kernel": "kernel {}",
    "python": "Python {}",
    "cores": "{} cores",
    "memory": "{}",
    "accelerators": "accelerators: {}",
}


class CheckNodeTable:
    """One row per node, or per group of equal nodes if there are many; equal columns become one line below."""

    def __init__(
        self,
        facts: Facts,
        by_subject: Mapping[str, Sequence[Finding]],
        outcomes: Sequence[SubjectResult],
        *,
        every_node: bool,
    ) -> None:
        self._facts = facts
        self._subjects = list(by_subject)
        self._untested = {outcome.subject.name: outcome.untested for outcome in outcomes}
        self._worst = find_worst(by_subject)
        self._met = {name: contact for name, contact in facts.contacts.items() if isinstance(contact, ReachedNode)}
        self._traits = collect_traits(facts, self._met)
        self._nodes = {node.name: node for node in facts.cluster}
        self._one_by_one = every_node or len(facts.cluster) <= ONE_BY_ONE

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        values = {trait: {traits[trait] for traits in self._traits.values() if trait in traits} for trait in TRAITS}
        common = {trait: min(distinct) for trait, distinct in values.items() if len(distinct) == 1}
        differing = [trait for trait, distinct in values.items() if len(distinct) > 1]
        rows = [self._row(names, differing) for names in self._groups(differing)]
        yield NodeGrid(self._subjects, rows, (*differing, "clock", "host", "round trip"))
        if common:
            common_text = ", ".join(_format_trait(trait, value) for trait, value in common.items())
            whose = {1: "it has", 2: "both have"}.get(len(self._met), f"all {len(self._met)} have")
            yield from wrap_labelled(
                Text(f"{whose}: ", style="dim"), common_text, options.max_width, indent=2, style="dim"
            )
        if interpreters := self._interpreters():
            yield from wrap_labelled(
                Text("ranks use ", style="dim"), interpreters, options.max_width, indent=2, style="dim"
            )

    def _interpreters(self) -> str:
        """The Python of the ranks and why it was chosen; with its nodes if they differ."""
        by_interpreter: dict[str, list[str]] = {}
        for node in self._facts.cluster:
            if node.interpreter is not None and node.name in self._met:
                by_interpreter.setdefault(escape_text(str(node.interpreter), 200), []).append(node.name)
        if len(by_interpreter) == 1:
            return next(iter(by_interpreter))
        return ", ".join(f"{interpreter} on {fold_names(names)}" for interpreter, names in by_interpreter.items())

    def _groups(self, differing: Sequence[str]) -> Iterable[list[str]]:
        names = [node.name for node in self._facts.cluster]
        if self._one_by_one:
            return [[name] for name in names]
        alike: dict[object, list[str]] = {}
        for name in names:
            traits = self._traits.get(name, {})
            alike.setdefault((self._marks(name), *(traits.get(trait) for trait in differing)), []).append(name)
        return alike.values()

    def _marks(self, name: str) -> tuple[StatusMark, ...]:
        return tuple(
            mark_node(
                self._worst[subject].get(name), tested=name in self._met and name not in self._untested.get(subject, ())
            )
            for subject in self._subjects
        )

    def _row(self, names: list[str], differing: Sequence[str]) -> GridRow:
        first, alone = names[0], len(names) == 1
        label, marks = fold_names(names), self._marks(first)
        contact = self._facts.contacts[first]
        if isinstance(contact, UnreachedNode):
            note = contact.reason.value.replace("-", " ") if alone else f"{len(names)} nodes"
            return GridRow(label=label, marks=marks, note=note, style="red")
        contacts = [self._met[name] for name in names]
        return GridRow(
            label=label,
            marks=marks,
            more={
                **{trait: self._traits[first][trait] for trait in differing},
                "clock": format_offset(max((contact.clock_offset for contact in contacts), key=abs)),
                "host": _format_host(self._nodes[first], contact) if alone else f"{len(names)} nodes",
                "round trip": ("" if alone else "≤ ") + format_milliseconds(max(each.round_trip for each in contacts)),
            },
        )


def _format_trait(trait: str, value: str) -> str:
    return format_count(int(value), "core") if trait == "cores" and value.isdecimal() else TRAITS[trait].format(value)


def format_milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def format_offset(seconds: float) -> str:
    return f"{seconds:+.1f} s" if abs(seconds) >= 1 else f"{seconds * 1000:+.1f} ms"


def _format_host(node: Node, contact: ReachedNode) -> str:
    """The hostname if it differs from the node's name, and the dialled address."""
    address = contact.address or ("this machine" if node.transport is TransportKind.LOCAL else "")
    return address if contact.hostname == node.name else f"{contact.hostname} {address}".strip()


def collect_traits(facts: Facts, contacts: Mapping[str, ReachedNode]) -> dict[str, dict[str, str]]:
    """The probed traits by node; "?" for unknown."""
    by_trait = {
        "kernel": {name: kernel.visible() for name, kernel in facts.of(host.KERNEL).items()},
        "cores": {name: str(cores) for name, cores in facts.of(host.CORES).items()},
        "memory": {name: format_size(memory) for name, memory in facts.of(host.MEMORY).items()},
        "accelerators": {name: _format_models(models) for name, models in facts.of(host.ACCELERATORS).items()},
    }
    return {
        name: {
            "user": contact.user,
            "python": contact.python,
            **{trait: values.get(name, "?") for trait, values in by_trait.items() if trait in facts.answers},
        }
        for name, contact in contacts.items()
    }


def _format_models(accelerators: tuple[Untrusted, ...]) -> str:
    kinds = {model: accelerators.count(model) for model in accelerators}
    return ", ".join(f"{count} × {model.visible()}" for model, count in kinds.items()) or "none"
