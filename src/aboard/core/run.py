"""A run is a fold over its events: O(1) per event, the same live and replayed from disk."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from aboard.core.event import Event, Sample


@dataclass(kw_only=True)
class Child:
    """One process of a run, as its events tell it."""

    node: str
    name: str
    state: str
    at: float
    code: int | None = None
    why: str = ""


@dataclass(kw_only=True)
class Generation:
    """One attempt at running all ranks; a restart is the next one of the same run."""

    number: int = 0
    children: dict[tuple[str, str], Child] = field(default_factory=dict)
    first_death: Child | None = None


@dataclass(kw_only=True)
class Run:
    """The state of a run. The one value here that changes, since a copy per event would cost O(ranks)."""

    id: str
    generation: Generation = field(default_factory=Generation)
    ended_nodes: set[str] = field(default_factory=set)
    samples: dict[tuple[str, int | None, str], Sample] = field(default_factory=dict)

    @classmethod
    def replay(cls, run: str, events: Iterable[Event]) -> Self:
        folded = cls(id=run)
        for event in events:
            folded.apply(event)
        return folded

    def apply(self, event: Event) -> None:
        """Takes one event in; kinds that it doesn't know are for others, and change nothing here."""
        if event.kind == "generation":
            self.generation = Generation(number=int(event.data["number"]))
            self.ended_nodes.clear()
        elif event.kind == "ended":
            self.ended_nodes.add(event.node)
        elif event.kind in ("started", "exited", "failed"):
            self._apply_child(event)

    def take(self, sample: Sample) -> None:
        """The latest value wins."""
        self.samples[sample.node, sample.rank, sample.name] = sample

    def _apply_child(self, event: Event) -> None:
        child = Child(
            node=event.node,
            name=event.child,
            state=event.kind,
            at=event.at,
            code=event.data.get("code"),
            why=str(event.data.get("why", "")),
        )
        self.generation.children[event.node, event.child] = child
        died = event.kind == "failed" or (event.kind == "exited" and child.code != 0)
        first = self.generation.first_death
        # Events of two nodes may arrive in another order than they happened: the corrected time decides.
        if died and (first is None or child.at < first.at):
            self.generation.first_death = child
