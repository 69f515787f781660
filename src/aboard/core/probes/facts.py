"""Facts: what preflight probes returned, and what stayed unknown."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact, ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeParseError
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from aboard.core.probes.rank_environment import RankEnvironment

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A probe without a reply, or with one that can't be parsed: a result, never a pass.

    `lines` are what a command that failed printed last.
    """

    why: str
    lines: tuple[Untrusted, ...] = field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a cluster: how each node was reached, its reply to each probe, and the environment of its ranks.

    The cluster's nodes have the interpreters that were chosen for them.
    """

    cluster: Cluster
    contacts: Mapping[str, Contact]
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outcomes: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, "RankEnvironment | Unknown"] = field(default_factory=dict)

    def of(self, probe: Probe[T]) -> dict[str, T]:
        """The known replies by node, in the cluster's order."""
        answers = self.answers.get(probe.name, {})
        return {
            node.name: answers[node.name]
            for node in self.cluster
            if node.name in answers and not isinstance(answers[node.name], Unknown)
        }

    def list_reached(self) -> list[Node]:
        """The nodes that responded, in the cluster's order."""
        return [node for node in self.cluster if isinstance(self.contacts.get(node.name), ReachedNode)]

    def unknown(self, probe: Probe[Any]) -> dict[str, Unknown]:
        """The nodes that were probed and whose reply is unknown, in the cluster's order."""
        answers = self.answers.get(probe.name, {})
        found = ((node.name, answers.get(node.name)) for node in self.cluster)
        return {name: fact for name, fact in found if isinstance(fact, Unknown)}


def parse_answer(probe: Probe[T], answer: ProbeAnswer) -> T | Unknown:
    """Parses a reply; a parser that fails makes it Unknown."""
    try:
        return probe.parse(answer)
    except ProbeParseError as error:
        return Unknown(why=str(error), lines=error.lines)
    except Exception as error:  # noqa: BLE001 - a node's reply must not stop the check of the others
        return Unknown(why=f"Aboard could not parse the reply: {type(error).__name__}")
