"""The progress and the result of copying files to nodes."""

from collections.abc import Callable
from typing import Literal

from aboard.diagnoses import AboardError
from aboard.lazy_dataclass import dataclass

UploadPhase = Literal["looking", "sending", "waiting", "done"]


@dataclass(frozen=True, kw_only=True)
class UploadProgress:
    """The progress of one node in bytes: hashed while it checks its files, present while it receives."""

    node: str
    phase: UploadPhase
    done: int
    total: int


OnProgress = Callable[[UploadProgress], None]


@dataclass(frozen=True, kw_only=True)
class NodeTreeResult:
    """The bytes sent to, fetched from peers by and already on one node, and what else changed; `error` if it failed."""

    sent: int = 0
    from_peers: int = 0
    had: int = 0
    files: int = 0
    deleted: int = 0
    changed: bool = False
    seconds: float = 0.0
    same_disk_as: str | None = None
    error: AboardError | None = None
