"""Facts: what the nodes answered, and what stayed unknown."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact, ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeParseError
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from aboard.core.probes.rank_environment import RankEnvironment

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A question that got no answer, or one that can't be read: a result, never a pass."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is known of a cluster: how each node was reached, its answer to each probe, and what ranks find there.

    The cluster's nodes have the interpreters that were chosen for them.
    """

    cluster: Cluster
    contacts: Mapping[str, Contact]
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outcomes: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, "RankEnvironment | Unknown"] = field(default_factory=dict)

    def of(self, probe: Probe[T]) -> dict[str, T]:
        """The known answers by node, in the cluster's order."""
        answers = self.answers.get(probe.name, {})
        return {
            node.name: answers[node.name]
            for node in self.cluster
            if node.name in answers and not isinstance(answers[node.name], Unknown)
        }

    def reached(self) -> list[Node]:
        """The nodes that answered, in the cluster's order."""
        return [node for node in self.cluster if isinstance(self.contacts.get(node.name), ReachedNode)]

    def unknown(self, probe: Probe[Any]) -> dict[str, Unknown]:
        """The nodes that were asked and whose answer stayed unknown."""
        answers = self.answers.get(probe.name, {})
        return {name: fact for name, fact in answers.items() if isinstance(fact, Unknown)}


def parse_answer(probe: Probe[T], answer: ProbeAnswer) -> T | Unknown:
    """Parses an answer; what the parser doesn't know becomes Unknown instead of an exception."""
    try:
        return probe.parse(answer)
    except ProbeParseError as error:
        return Unknown(why=str(error))
    except Exception as error:  # noqa: BLE001 - what a node sends must not end the check of the others
        return Unknown(why=f"its parser failed on the reply: {type(error).__name__}")
