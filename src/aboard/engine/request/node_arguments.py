"""The nodes that a command was typed with, the same for every command."""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

from aboard.config.cluster_loader import guess_nodes, load_cluster
from aboard.config.slurm_allocation import read_allocation
from aboard.config.slurm_request import load_slurm_settings
from aboard.config.this_machine import inspect_this_machine
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.cluster.node import Node
from aboard.core.secrets.secret_names import is_secret
from aboard.core.slurm.allocation import SlurmAllocation, refuse_srun_copies
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import InputError, Shell
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeArguments:
    """The node arguments as typed, not parsed yet, and the command line and environment that they were typed in."""

    nodes: tuple[str, ...]
    hostfile: str | None
    include: str
    exclude: str
    sets: tuple[str, ...]
    allow_file: bool = False
    argv: tuple[str, ...] = field(default=(), repr=False)
    environ: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)

    @property
    def is_given(self) -> bool:
        """Whether the user named nodes, instead of leaving it to ./aboard.yaml."""
        return bool(self.nodes or self.hostfile or self.include or self.exclude or self.sets)

    def list_words(self) -> list[str]:
        """The same arguments for another `aboard sync`; a setting that may be a secret is left out."""
        on = [word for name in self.nodes for word in ("--on", name)]
        filters = {"--hostfile": self.hostfile, "--include": self.include, "--exclude": self.exclude}
        sets = [each for each in self.sets if not is_secret(each.partition("=")[0].rpartition(".")[2])]
        return [
            *on,
            *(word for option, value in filters.items() if value for word in (option, value)),
            *(word for each in sets for word in ("--set", each)),
            *(["--allow-file"] if self.allow_file else []),
        ]

    @cached_property
    def _here(self) -> HeadMachine:
        """Cached: a resolver that does not respond costs a second."""
        return inspect_this_machine()

    @cached_property
    def allocation(self) -> SlurmAllocation | None:
        """The Slurm job that this command runs in."""
        return read_allocation(self.environ)

    def cluster(self) -> Cluster:
        refuse_srun_copies(self.environ, self.argv)
        if self.job_to_submit is not None:
            from aboard.core.slurm.conductor_command import refuse_outside_job  # noqa: PLC0415 - only for Slurm

            refuse_outside_job(self.job_to_submit, self.argv)
        return load_cluster(
            self.nodes,
            hostfile=self.hostfile,
            include=self.include,
            exclude=self.exclude,
            sets=self.sets,
            here=self._here,
            allocation=self.allocation,
            allow_file=self.allow_file,
        )

    @cached_property
    def slurm_settings(self) -> SlurmSettings | None:
        """The job that cluster.slurm describes."""
        return load_slurm_settings(self.nodes, hostfile=self.hostfile, sets=self.sets, allow_file=self.allow_file)

    @property
    def job_to_submit(self) -> SlurmSettings | None:
        """The same; None inside a job, where its nodes are used."""
        return None if self.allocation is not None else self.slurm_settings

    def check_job(
        self, command: Shell, *, detach: bool, recovers: bool, resumes: bool | None = None
    ) -> tuple[str, ...]:
        """Notes on the Slurm job; see `check_job_start`."""
        if self.allocation is None:
            return ()
        from aboard.engine.slurm.job_start import check_job_start  # noqa: PLC0415 - only inside a job

        return check_job_start(
            self.allocation, command, self.environ, detach=detach, resumes=resumes, recovers=recovers
        )

    def check_job_size(self, command: Shell, *, ranks: int | None) -> tuple[str, ...]:
        """Compares the Slurm job with cluster.slurm, unless nodes are chosen otherwise."""
        if self.allocation is None or self.include or self.exclude:
            return ()
        try:
            asked = self.slurm_settings
        except InputError:  # the nodes are named beside the section, and a job uses those
            return ()
        if asked is None:
            return ()
        from aboard.engine.slurm.job_start import check_job_size  # noqa: PLC0415 - only inside a job

        return check_job_size(self.allocation, asked, command, ranks=ranks)

    def guess(self) -> tuple[Node, ...]:
        """The nodes to dial while the rest is parsed; none if finding them needs parsing."""
        refuse_srun_copies(self.environ, self.argv)
        if self.sets:
            return ()
        return guess_nodes(
            self.nodes,
            hostfile=self.hostfile,
            include=self.include,
            exclude=self.exclude,
            here=self._here,
            allocation=self.allocation,
            allow_file=self.allow_file,
        )

    def with_default(self, *, hostfile: str | None, include: str, exclude: str) -> "NodeArguments":
        """Fills in the hostfile and filters of a pasted launcher command where none were typed."""
        has_nodes = bool(self.nodes or self.hostfile)
        return replace(
            self,
            hostfile=self.hostfile if has_nodes else hostfile,
            include=self.include or include,
            exclude=self.exclude or exclude,
        )
