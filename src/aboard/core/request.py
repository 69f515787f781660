"""A request: what the user wants to run, before anything is known of the nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aboard.core.node import NO_ENV
from aboard.core.program import Program


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is None is chosen from what the check has seen.

    `ranks` is the number on each node; without it a node starts one for each of its slots. `env` is for every rank, and
    wins over the nodes' own. `nodes` is how many nodes the user said there are: fewer is an error, never a smaller run.
    """

    program: Program
    ranks: int | None = None
    nodes: int | None = None
    master_address: str | None = None
    master_port: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)
    threads: int | None = None
    bind: bool = False
    beacon: bool = True
