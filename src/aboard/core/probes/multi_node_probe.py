"""An exercise: a question that needs several nodes at once, told as rounds of asks and what came back.

A script is a generator: it yields a round (whom to ask what), is sent the replies, and returns the outcome. It does no
I/O, so it is tested by sending it recorded replies.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import field
from typing import Any, Generic, TypeAlias, TypeVar

from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.probe import ProbeCommand
from aboard.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """One op of the agent, with its fields, and how long an answer may take."""

    op: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    within: float = 10.0

    @classmethod
    def to_run(cls, command: ProbeCommand) -> "ProbeRequest":
        """Asks the agent to run a command as a probe has it."""
        fields: dict[str, Any] = {"argv": list(command.argv), "timeout": command.timeout}
        if command.source is not None:
            fields["source"] = command.source
        return cls(op="run", fields=fields, within=command.timeout + 5)


Round: TypeAlias = Mapping[str, ProbeRequest]
Replies: TypeAlias = Mapping[str, Mapping[str, Any] | Unknown]
Script: TypeAlias = Generator[Round, Replies, T]


@dataclass(frozen=True, kw_only=True)
class MultiNodeProbe(Generic[T]):
    """`script` gets the facts of all nodes; `quick` ones are part of every launch.

    An `early` one needs to know only who was reached, and is held while the probes are answered. A node that it never
    `needs` is let go as soon as its probes are answered.
    """

    name: str
    script: Callable[[Facts], "Script[T]"]
    quick: bool = True
    early: bool = False
    needs: Callable[[Node], bool] = lambda _node: True

    def outcome(self, facts: Facts) -> T | Unknown | None:
        """What this probe found on these nodes; None if it didn't run."""
        outcome: T | Unknown | None = facts.outcomes.get(self.name)
        return outcome
