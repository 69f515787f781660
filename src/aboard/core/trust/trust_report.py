"""What `aboard trust` did."""

from aboard.core.trust.public_keys import PublicKey
from aboard.diagnoses import Finding
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NewHostKey:
    """A host key that this machine has not seen before."""

    node: str
    key: PublicKey


@dataclass(frozen=True, kw_only=True)
class TrustedNode:
    """A node at the end: whether this machine can log in, and whether its key was installed now."""

    name: str
    reached: bool
    installed: bool


@dataclass(frozen=True, kw_only=True)
class MeshReport:
    """`logins` of `tested` between nodes work; `possible` is the number of all pairs. `changed` counts new lines."""

    findings: tuple[Finding, ...]
    created: int
    changed: int
    logins: int
    tested: int
    possible: int


@dataclass(frozen=True, kw_only=True)
class TrustReport:
    """What was done. `created` is the path of a new key; `mesh` is None without `--mesh`."""

    nodes: tuple[TrustedNode, ...]
    findings: tuple[Finding, ...]
    pinned: tuple[NewHostKey, ...]
    created: str | None
    mesh: MeshReport | None
    seconds: float

    @property
    def is_unchanged(self) -> bool:
        changed = self.pinned or self.created or any(node.installed for node in self.nodes)
        return not changed and not (self.mesh and self.mesh.changed)


@dataclass(frozen=True, kw_only=True)
class UndoReport:
    """The nodes that are as they were, whether this machine is too, and what went wrong."""

    nodes: tuple[str, ...]
    head: bool
    findings: tuple[Finding, ...]
    seconds: float
