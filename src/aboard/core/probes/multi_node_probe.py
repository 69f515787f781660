"""A multi-node probe: needs several nodes at once, and runs in rounds of requests and replies.

A script is a generator: it yields a round (a request per node), is sent the replies, and returns the outcome. It does
no I/O, so tests send it recorded replies.
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
    """One op of the agent, with its fields and the timeout of its reply."""

    op: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    within: float = 10.0

    @classmethod
    def to_run(cls, command: ProbeCommand) -> "ProbeRequest":
        """The request to run a probe's command."""
        return cls(op="run", fields=command.describe(), within=command.timeout + 5)


Round: TypeAlias = Mapping[str, ProbeRequest]
Replies: TypeAlias = Mapping[str, Mapping[str, Any] | Unknown]
Script: TypeAlias = Generator[Round, Replies, T]


@dataclass(frozen=True, kw_only=True)
class MultiNodeProbe(Generic[T]):
    """`script` gets the facts of all nodes; `quick` ones are part of every launch.

    An `early` one needs only the list of reached nodes, and runs beside the probes. A node that it never `needs` is
    released as soon as its own probes are done.
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
