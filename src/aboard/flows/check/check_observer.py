"""What a check tells while it runs, for whoever draws it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact
from aboard.core.probes.check_subject import Subject
from aboard.diagnoses import Finding


class CheckObserver(Protocol):
    """Is told in the order in which things happen; it must neither wait nor raise."""

    def began(self, cluster: Cluster, subjects: Sequence[Subject]) -> None:
        """These nodes will be asked about these subjects; each has only the questions of this check."""

    def dialling(self, node: str, phase: str) -> None:
        """The login of a node came to a phase."""

    def asking(self, node: str) -> None:
        """Its agent is there, and every subject's questions are on their way to it."""

    def answered(self, node: str, probe: str) -> None:
        """Its answer to a probe is in, not yet judged."""

    def visited(self, node: str, contact: Contact) -> None:
        """The visit is over; the contact says whether the node was reached."""

    def round(self, subject: str, number: int, nodes: Collection[str]) -> None:
        """An exercise asks these nodes, for the so manyth time."""

    def replied(self, node: str) -> None:
        """A node's part in the present round is over."""

    def judged(self, subject: str, findings: Sequence[Finding], untested: Mapping[str, str]) -> None:
        """A subject has all its answers while the exercises of others go on; the report has the last word.

        `untested` has the nodes on which nothing was tested, with the reason.
        """


class NullCheckObserver:
    """Listens to nothing."""

    def began(self, cluster: Cluster, subjects: Sequence[Subject]) -> None:
        pass

    def dialling(self, node: str, phase: str) -> None:
        pass

    def asking(self, node: str) -> None:
        pass

    def answered(self, node: str, probe: str) -> None:
        pass

    def visited(self, node: str, contact: Contact) -> None:
        pass

    def round(self, subject: str, number: int, nodes: Collection[str]) -> None:
        pass

    def replied(self, node: str) -> None:
        pass

    def judged(self, subject: str, findings: Sequence[Finding], untested: Mapping[str, str]) -> None:
        pass
