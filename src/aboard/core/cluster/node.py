"""A node: a machine with an address and a number of slots."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from aboard.core.cluster.container import Container
from aboard.core.cluster.interpreter import NO_ENV, Interpreter
from aboard.lazy_dataclass import dataclass


class TransportKind(Enum):
    """How to reach a node: `LOCAL` is this machine, `SLURM` is srun inside a job."""

    LOCAL = "local"
    SSH = "ssh"
    SLURM = "slurm"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine, how to reach it, and what its ranks get.

    `name` is what the user wrote, and what findings show. ssh gets `address`; None means the name, so that the user's
    ssh_config can map it. Peers use `fabric_address` for training traffic. `picked` lists the slots that
    include/exclude left; None means all. `env` is not in the repr, since it may hold tokens that tracebacks and logs
    must not show. `python` runs the agent; `interpreter` runs ranks, and is None until it is configured or chosen.
    `cores` and `step_options` come from a Slurm job: its cores on the node, and srun's options to use all its GPUs.
    """

    name: str
    slots: int | None = None
    address: str | None = None
    user: str | None = None
    port: int | None = None
    python: str = "python3"
    interpreter: Interpreter | None = None
    workdir: str | None = None
    fabric_address: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)
    setup: tuple[str, ...] = ()
    container: Container | None = None
    picked: tuple[int, ...] | None = None
    cores: int | None = None
    step_options: tuple[str, ...] = ()
    transport: TransportKind = TransportKind.SSH

    @property
    def target(self) -> str:
        """The name or address that ssh and peers use."""
        return self.address or self.name

    @property
    def rank_python(self) -> str:
        """The Python that runs ranks, and the checks that simulate them; in a container, the one inside."""
        if self.container is not None:
            return self.container.python
        return self.python if self.interpreter is None else self.interpreter.path
