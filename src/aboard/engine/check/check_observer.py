"""The observer interface through which a check reports its progress."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact
from aboard.core.probes.check_subject import Subject
from aboard.diagnoses import Finding


class CheckObserver(Protocol):
    """Called in the order of events; must neither block nor raise."""

    def began(self, cluster: Cluster, subjects: Sequence[Subject]) -> None:
        """The check of these nodes starts; each subject has only the probes of this check."""

    def dialling(self, node: str, phase: str) -> None:
        """The connection to a node entered a phase."""

    def asking(self, node: str) -> None:
        """The node's agent is up, and all probes are being sent to it."""

    def answered(self, node: str, probe: str) -> None:
        """The reply to a probe has arrived, not yet judged."""

    def visited(self, node: str, contact: Contact) -> None:
        """All probes of a node are done; the contact shows whether it was reached."""

    def round(self, subject: str, number: int, nodes: Collection[str]) -> None:
        """A multi-node probe starts this round on these nodes."""

    def replied(self, node: str) -> None:
        """A node is done with the current round."""

    def judged(self, subject: str, findings: Sequence[Finding], untested: Mapping[str, str]) -> None:
        """A subject has all its replies while probes of others continue; the final report may differ.

        `untested` has the nodes on which nothing was tested, with the reason.
        """


class NullCheckObserver:
    """Ignores everything."""

    def _ignore(self, *_news: Any, **_named: Any) -> None:
        pass

    began = dialling = asking = answered = visited = round = replied = judged = _ignore
