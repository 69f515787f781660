"""A launch as one value, and what a payload adds to it."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.interpreter import NO_ENV, HeadEnvironment
from aboard.core.cluster.node import Node
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import Plan
from aboard.core.plan.program import Program
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.diagnoses import Finding, Shell, format_shell
from aboard.doctor.collective import subject as collective
from aboard.doctor.gpu import subject as gpu
from aboard.doctor.software import subject as software
from aboard.doctor.subjects import SUBJECTS
from aboard.engine.recovery.checkpoint_copies import CopySettings
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer

if TYPE_CHECKING:
    from aboard.engine.request.typed_launch import TypedLaunch

# Subjects that start the ranks' Python, which gets the variables of the launch.
_RUNS_PYTHON = {gpu.SUBJECT.name, software.SUBJECT.name, collective.SUBJECT.name}


class Payload(Protocol):
    """What a run needs besides its program: settled once the nodes are known, uploaded before the ranks start."""

    async def settle(self, plan: Plan, facts: Facts) -> tuple[Plan, Sequence[Finding]]:
        """The plan including the payload, and findings about it."""

    async def load(self, plan: Plan, dialer: NodeDialer, *, resume: bool = False) -> None:
        """Uploads it to every node; raises AboardError if that fails. With `resume`, ranks continue this run."""

    async def load_spare(self, node: Node, dialer: NodeDialer) -> None:
        """Uploads to a node what it would need for ranks, while the run goes on elsewhere."""

    def resume(self, plan: Plan) -> Plan:
        """The plan whose ranks continue from the newest checkpoint of this run."""

    @property
    def copies(self) -> CopySettings | None:
        """How checkpoints are copied between nodes without a shared disk; None if they are not."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """A launch as one value, from the command line to the conductor; `command` starts the same launch again.

    `subjects` are checked first, quickly or in full; none is at the user's own risk, and only what is `essential` for
    the payload is probed. Ranks get the head's `environment` on nodes that have it, whichever subjects are checked.
    With `sync_limit`, the working directory is sent first. `run` is the id of a run that was submitted as a Slurm job,
    and up to `resubmits` more jobs continue a training run. A `script` runs until it calls a launcher. `argv`,
    `cwd` and `environ` are those of the command.
    """

    cluster: Cluster
    request: LaunchRequest
    lease: Lease = Lease()
    command: Shell = format_shell("aboard launch")
    subjects: Sequence[Subject] = ()
    quick: bool = True
    environment: HeadEnvironment | None = None
    payload: Payload | None = None
    essential: Subject | None = None
    notes: tuple[str, ...] = ()
    sync_limit: int | None = None
    run: str | None = None
    resubmits: int = 0
    recovery: RecoverySettings = RecoverySettings()
    script: "TypedLaunch | None" = None
    argv: tuple[str, ...] = field(default=(), repr=False)
    cwd: str = ""
    environ: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)


def choose_subjects(check: str, program: Program | None, env: Mapping[str, str]) -> tuple[Subject, ...]:
    """The subjects of a launch; `check` is quick, full or none, and `program` is what the nodes must have.

    `env` has the variables that ranks get.
    """
    if check == "none":
        return ()
    own = software.SUBJECT if program is None else software.build_subject(program)
    chosen = [own if subject is software.SUBJECT else subject for subject in SUBJECTS]
    return tuple(subject.with_variables(env) if subject.name in _RUNS_PYTHON else subject for subject in chosen)
