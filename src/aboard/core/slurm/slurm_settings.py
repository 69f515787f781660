"""The request of a job: the section `cluster.slurm` of aboard.yaml."""

from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """What to ask Slurm for; None leaves the choice to Slurm's own defaults.

    `extra` holds further options of sbatch, one each. A run that Slurm ended is continued in at most
    `resubmit_limit` further jobs.
    """

    nodes: int
    partition: str | None = None
    gpus_per_node: int | None = None
    account: str | None = None
    time: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    extra: tuple[str, ...] = ()
    resubmit_limit: int = 0
