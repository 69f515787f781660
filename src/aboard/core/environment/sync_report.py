"""The progress and the result of recreating the head's Python environment on the nodes."""

from collections.abc import Mapping
from typing import Literal

from aboard.diagnoses import AboardError, Finding
from aboard.lazy_dataclass import dataclass

EnvironmentAction = Literal["created", "updated", "unchanged", "shared"]
EnvironmentPhase = Literal["packing", "checking", "sending", "installing", "waiting", "done"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentProgress:
    """The progress of one node: bytes while wheels are sent, packages otherwise. The head's name is empty."""

    node: str
    phase: EnvironmentPhase
    done: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeEnvironmentResult:
    """What was done on a node; `same_disk_as` names the node whose disk it shares, "" for the head's."""

    action: EnvironmentAction
    installed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    sent: int = 0
    seconds: float = 0.0
    same_disk_as: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnvironmentSyncResult:
    """The result for each node, or why it failed.

    `projects` are the directories of editable installations, which nodes get as regular ones; `loose` are files of
    site-packages that belong to no package and are not copied.
    """

    prefix: str
    packages: int
    projects: tuple[str, ...]
    loose: tuple[str, ...]
    nodes: Mapping[str, NodeEnvironmentResult]
    failures: Mapping[str, AboardError]
    seconds: float
    dry: bool = False
