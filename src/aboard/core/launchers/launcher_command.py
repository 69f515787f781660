"""What a pasted command asks for, once its launcher's flags are read."""

from collections.abc import Mapping
from typing import Protocol

from aboard.core.plan.launch_request import LaunchRequest
from aboard.lazy_dataclass import dataclass


class LauncherFiles(Protocol):
    """The head's files. A leading `~` is the user's home, and a relative path starts where the command was typed."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> str: ...

    def settings(self, path: str) -> Mapping[str, object]:
        """An accelerate config file as a mapping, its keys checked; raises InputError with the line."""
        ...


@dataclass(frozen=True, kw_only=True)
class LauncherContext:
    """What a launcher would find around it: the head's files, its environment, and where the command was typed."""

    files: LauncherFiles
    environ: Mapping[str, str]
    cwd: str


@dataclass(frozen=True, kw_only=True)
class LauncherCommand:
    """The request, and what the launcher's flags say of the nodes.

    `include` and `exclude` are DeepSpeed's filters. `picked` are the slots to use on every node, `setup` are lines to
    put behind each node's own, `ssh_port` is for nodes that have none. `notes` say what was left out, and why.
    """

    launcher: str
    request: LaunchRequest
    hostfile: str | None = None
    include: str = ""
    exclude: str = ""
    picked: tuple[int, ...] | None = None
    setup: tuple[str, ...] = ()
    ssh_port: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> int | None:
        """How many nodes were asked for: the first of a hostfile, as DeepSpeed takes them."""
        return self.request.nodes

    @property
    def ranks(self) -> int | None:
        """How many ranks each node starts; None is one for each of its slots."""
        return self.request.ranks

    @property
    def env(self) -> Mapping[str, str]:
        """What the launcher would have set for every rank, beside torch's own contract."""
        return self.request.env
