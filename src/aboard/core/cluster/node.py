"""A node: a machine with an address and a number of slots."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from aboard.core.cluster.interpreter import NO_ENV, Interpreter
from aboard.lazy_dataclass import dataclass


class TransportKind(Enum):
    """How a node is reached: `LOCAL` is this machine itself."""

    LOCAL = "local"
    SSH = "ssh"


@dataclass(frozen=True, kw_only=True)
class Container:
    """What wraps a rank's argv on a node; the agent stays outside."""

    runtime: str
    image: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine, how it is reached, and what a rank gets there.

    `name` is what the user wrote and what every finding says. `address` is what ssh gets; None means the
    name itself, so that the user's ssh_config can map it. `fabric_address` is where peers reach it for
    training traffic. `picked` lists the slots that include/exclude left; None means all of them. `env` stays
    out of the repr: a traceback or a log line is no place for a token. `python` runs the agent; `interpreter` runs
    ranks, and is None until it was configured or chosen.
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
    transport: TransportKind = TransportKind.SSH

    @property
    def target(self) -> str:
        """What ssh and peers are given to reach it."""
        return self.address or self.name

    @property
    def rank_python(self) -> str:
        """What ranks are run by, and every check that stands in for them."""
        return self.python if self.interpreter is None else self.interpreter.path
