"""The progress and the result of copying files to nodes."""

from collections.abc import Callable
from typing import Literal, NamedTuple

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
    """The bytes that the head sent, that other nodes passed on, and that were there; `error` if the node failed."""

    sent: int = 0
    from_peers: int = 0
    had: int = 0
    files: int = 0
    deleted: int = 0
    changed: bool = False
    seconds: float = 0.0
    same_disk_as: str | None = None
    error: AboardError | None = None


class LeftOutPath(NamedTuple):
    """A file or directory of a tree that .gitignore names, and what is in it."""

    path: str
    files: int
    bytes: int
    is_directory: bool


@dataclass(frozen=True, kw_only=True)
class CollectedPath:
    """What a path of a node became here; `skipped` counts links that lead out of it, special files and `.git`."""

    node: str
    target: str
    files: int = 0
    bytes: int = 0
    received: int = 0
    skipped: int = 0
    error: AboardError | None = None
