"""A launcher's command after parsing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from aboard.core.cluster.container import Container
from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.lazy_dataclass import dataclass


class LauncherFiles(Protocol):
    """The files that a launcher would read. `~` is the home; relative paths start in the directory of the command."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> str: ...

    def settings(self, path: str) -> Mapping[str, object]:
        """An accelerate config file as a mapping with validated keys; the InputError names the line."""
        ...


ABOARD_LAUNCH = ("aboard", "launch")


@dataclass(frozen=True, kw_only=True)
class LauncherContext:
    """What a launcher would see: the head's files, its environment, and the current directory.

    `parse_inner` parses the command that srun or a container starts; None if it is no launcher's. `launch` are the
    words that the user typed before `--`, for the commands of fixes.
    """

    files: LauncherFiles
    environ: Mapping[str, str]
    cwd: str
    parse_inner: "Callable[[Sequence[str], LauncherContext], LauncherCommand | None]"
    launch: tuple[str, ...] = ABOARD_LAUNCH


@dataclass(frozen=True, kw_only=True)
class JobScript:
    """A script that runs in a Slurm job: its command, the variables that it gets and lacks, and its directory.

    A script of sbatch belongs to the job's first node: a launcher that it calls without srun starts ranks there only.
    """

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    removed: tuple[str, ...] = ()
    cwd: str | None = None
    is_batch: bool = False


@dataclass(frozen=True, kw_only=True)
class LauncherCommand:
    """The request, and what the launcher's flags say about the nodes.

    `include` and `exclude` are DeepSpeed's filters. `picked` are the slots to use on every node, `setup` lines are
    appended to each node's own, `ssh_port` and `workdir` are for nodes without their own. `notes` say which flags were
    dropped, and why. `slurm` is the job that srun or sbatch would ask for; None inside a job. `container` is what the
    command starts its launcher in; it replaces the nodes' own. A launcher that is `per_node` starts the ranks of its
    own node, so each node runs it. `python` would have run a captured launcher; "" is each node's own. `script` is what
    has to run in the job before the ranks are known.
    """

    launcher: str
    request: LaunchRequest
    hostfile: str | None = None
    include: str = ""
    exclude: str = ""
    picked: tuple[int, ...] | None = None
    setup: tuple[str, ...] = ()
    ssh_port: int | None = None
    workdir: str | None = None
    slurm: SlurmSettings | None = None
    container: Container | None = None
    per_node: bool = False
    python: str = ""
    script: JobScript | None = None
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> int | None:
        """The requested number of nodes: the first ones of a hostfile, as in DeepSpeed."""
        return self.request.nodes

    @property
    def ranks(self) -> int | None:
        """The number of ranks on each node; None means one per slot."""
        return self.request.ranks

    @property
    def env(self) -> Mapping[str, str]:
        """The variables that the launcher would set for every rank, besides torch's own."""
        return self.request.env
