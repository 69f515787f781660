"""The live view of a check: nodes and subjects as replies arrive, and which nodes are late."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from aboard.commands.shared.node_grid import ONE_BY_ONE, GridRow, NodeGrid
from aboard.commands.shared.status_marks import (
    ANSWERED,
    NOT_ASKED,
    PENDING,
    SEVERITY_MARKS,
    StatusMark,
    find_worst,
    mark_node,
)
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact, UnreachedNode
from aboard.core.cluster.node_sets import fold_names
from aboard.core.probes.check_subject import Subject
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding, Severity
from aboard.lazy_dataclass import dataclass

# Up to this many are named one by one.
MOST_NAMED = 8
# Shorter waits are not worth showing.
SHOW_AFTER_SECONDS = 1.0

QUEUED, PROBING, REACHED, SILENT = "queued", "probing", "responded", "no response"


@dataclass(kw_only=True)
class _NodeState:
    """The progress of one node. `waits` are the pending probes by subject."""

    phase: str
    since: float
    waits: dict[str, set[str]] = field(default_factory=dict)
    why: str = ""


class CheckLiveView:
    """A `CheckObserver` that can be rendered at any time."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._nodes: dict[str, _NodeState] = {}
        self._subjects: list[str] = []
        self._multi_node_subjects: set[str] = set()
        self._probes: dict[str, tuple[str, ...]] = {}
        self._worst: dict[str, dict[str, Severity]] = {}
        self._untested: dict[str, Collection[str]] = {}
        self._round: tuple[str, int, float] | None = None
        self._replying: set[str] = set()

    def began(self, cluster: Cluster, subjects: Sequence[Subject]) -> None:
        self._subjects = [subject.name for subject in subjects]
        self._multi_node_subjects = {subject.name for subject in subjects if subject.multi_node_probes}
        self._probes = {subject.name: tuple(probe.name for probe in subject.probes) for subject in subjects}
        self._nodes = {node.name: _NodeState(phase=QUEUED, since=self._clock()) for node in cluster}

    def dialling(self, node: str, phase: str) -> None:
        self._at(node, phase.replace("-", " "))

    def asking(self, node: str) -> None:
        self._nodes[node].waits = {subject: set(probes) for subject, probes in self._probes.items()}
        self._at(node, PROBING)

    def answered(self, node: str, probe: str) -> None:
        for probes in self._nodes[node].waits.values():
            probes.discard(probe)

    def visited(self, node: str, contact: Contact) -> None:
        if isinstance(contact, UnreachedNode):
            self._nodes[node].why = contact.reason.value.replace("-", " ")
        self._at(node, SILENT if isinstance(contact, UnreachedNode) else REACHED)

    def round(self, subject: str, number: int, nodes: Collection[str]) -> None:
        self._replying = set(nodes)
        self._round = (subject, number, self._clock())

    def replied(self, node: str) -> None:
        self._replying.discard(node)

    def judged(self, subject: str, findings: Sequence[Finding], untested: Mapping[str, str]) -> None:
        self._untested[subject] = untested
        self._worst.update(find_worst({subject: findings}))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._nodes:
            return
        yield self._counts()
        if self._round is not None:
            yield self._format_round(*self._round)
        if len(self._nodes) <= ONE_BY_ONE:
            rows = [self._row(name) for name in self._nodes]
        else:
            yield from self._stragglers()
            rows = list(self._kinds())
        if rows:
            yield NodeGrid(self._subjects, rows)

    def _at(self, node: str, phase: str) -> None:
        state = self._nodes[node]
        if state.phase != phase:
            state.phase, state.since = phase, self._clock()

    def _counts(self) -> Text:
        counts = Counter(state.phase for state in self._nodes.values())
        line = Text(f"{self._clock() - self._began:.1f} s", style="dim", no_wrap=True, overflow="ellipsis")
        line.append(f"  {counts.pop(REACHED, 0)} of {len(self._nodes)} responded", style="not dim")
        if silent := counts.pop(SILENT, 0):
            line.append(f", {silent} did not", style="not dim red")
        for phase, count in counts.most_common():
            line.append(f", {count} {phase}")
        return line

    def _row(self, name: str) -> GridRow:
        state = self._nodes[name]
        marks = self._marks(name)
        if not marks:
            waited = "" if state.phase == QUEUED else f" for {self._clock() - state.since:.1f} s"
            return GridRow(label=name, note=f"{state.phase}{waited}", style="dim")
        if state.phase == SILENT:
            return GridRow(label=name, marks=marks, note=state.why, style="red")
        late = state.phase == PROBING and self._clock() - state.since >= SHOW_AFTER_SECONDS
        return GridRow(label=name, marks=marks, note=f"for {self._clock() - state.since:.1f} s" if late else "")

    def _marks(self, name: str) -> tuple[StatusMark, ...]:
        """One mark per subject; none while connecting to the node."""
        state = self._nodes[name]
        if state.phase not in {PROBING, REACHED, SILENT}:
            return ()
        return tuple(self._mark(state, name, subject) for subject in self._subjects)

    def _mark(self, state: _NodeState, name: str, subject: str) -> StatusMark:
        if state.phase == SILENT:
            return SEVERITY_MARKS[Severity.BLOCK] if subject == "reach" else NOT_ASKED
        if subject in self._worst:
            return mark_node(self._worst[subject].get(name), tested=name not in self._untested.get(subject, ()))
        if state.waits[subject] or (subject in self._multi_node_subjects):
            return PENDING
        return ANSWERED

    def _stragglers(self) -> Iterator[Text]:
        """The nodes that are not done: by name if they are few, else by phase."""
        late = {name: state for name, state in self._nodes.items() if state.phase not in {REACHED, SILENT}}
        now = self._clock()
        if len(late) <= MOST_NAMED:
            for name, state in late.items():
                pending = ", ".join(subject for subject, probes in state.waits.items() if probes)
                line = f"  {name}: {state.phase}{pending and ' '}{pending} for {now - state.since:.1f} s"
                yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")
            return
        for phase in Counter(state.phase for state in late.values()):
            names = [name for name, state in late.items() if state.phase == phase]
            longest = now - min(late[name].since for name in names)
            line = f"  {phase} for up to {longest:.1f} s: {fold_names(names)}"
            yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")

    def _kinds(self) -> Iterator[GridRow]:
        """One row for all nodes with equal marks, the largest group first."""
        alike: dict[tuple[StatusMark, ...], list[str]] = {}
        for name in self._nodes:
            if marks := self._marks(name):
                alike.setdefault(marks, []).append(name)
        groups = sorted(alike.items(), key=lambda group: -len(group[1]))
        for marks, names in groups[:MOST_NAMED]:
            yield GridRow(label=names[0] if len(names) == 1 else f"{len(names)} nodes", marks=marks)
        if rest := sum(len(names) for _marks, names in groups[MOST_NAMED:]):
            yield GridRow(label=format_count(rest, "other"), note="in other states", style="dim")

    def _format_round(self, subject: str, number: int, since: float) -> Text:
        waiting = fold_names(name for name in self._nodes if name in self._replying)
        who = f", waiting for {waiting}" if waiting else ""
        line = f"  {subject}: round {number}{who}, {self._clock() - since:.1f} s"
        return Text(line, no_wrap=True, overflow="ellipsis")


@contextmanager
def show_live_check(console: Console, *, quiet: bool = False) -> Iterator[CheckLiveView | None]:
    """A view that is on the screen while the block runs; None if there is no terminal."""
    if quiet or not console.is_terminal:
        yield None
        return
    view = CheckLiveView()
    with Live(view, console=console, transient=True, refresh_per_second=8):
        yield view
