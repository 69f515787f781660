"""A plan: exactly what will be started where."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property

from aboard.core.cluster.container import Container
from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.cluster.node import Node
from aboard.core.plan.program import Program
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Start:
    """One process on a node. `secrets` are names of variables whose values must never appear in output."""

    child: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    secrets: tuple[str, ...] = ()
    cwd: str | None = None
    rank: int | None = None
    beacon: bool = False
    # Whether it is a script whose launchers are handed to the head instead of starting ranks.
    capture: bool = False
    # Whether it can import the modules in the plan's `code`.
    code: bool = False
    # The container that argv runs in, and the words of the node's setup lines, which run outside before it.
    container: Container | None = None
    setup: tuple[str, ...] = ()
    # The cores that it is pinned to; empty means all of the node's.
    cores: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """Without env values, since tracebacks and logs must not show tokens."""
        return f"Start(child={self.child!r}, argv={self.argv!r}, env=<{len(self.env)} names>)"


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """What one node starts."""

    node: Node
    starts: tuple[Start, ...]


@dataclass(frozen=True, kw_only=True)
class MasterAddress:
    """Where rank 0 listens; port 0 means that its supervisor picks a free one just before ranks start."""

    node: str
    address: str
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parts of all nodes, in rank order. `code` is a zip file of Python modules that is sent to each node first."""

    run: str
    program: Program
    master: MasterAddress
    parts: tuple[NodePlan, ...]
    code: bytes = field(default=b"", repr=False)

    @cached_property
    def world(self) -> int:
        return sum(len(part.starts) for part in self.parts)

    def starts(self) -> Iterator[tuple[str, Start]]:
        """Each rank with the name of its node."""
        for part in self.parts:
            for start in part.starts:
                yield part.node.name, start


def bind_directories(plan: Plan, paths: Iterable[str]) -> Plan:
    """The plan whose containers also see these directories, at the same paths as outside."""
    added = tuple(paths)

    def bind(start: Start) -> Start:
        if start.container is None:
            return start
        directories = tuple(dict.fromkeys([*start.container.directories, *added]))
        return replace(start, container=replace(start.container, directories=directories))

    parts = [NodePlan(node=part.node, starts=tuple(map(bind, part.starts))) for part in plan.parts]
    return replace(plan, parts=tuple(parts))


def add_rank_env(plan: Plan, env: Mapping[str, str]) -> Plan:
    """The plan with additional environment variables for every rank."""

    def add(start: Start) -> Start:
        return replace(start, env={**start.env, **env})

    return replace(plan, parts=tuple(replace(part, starts=tuple(map(add, part.starts))) for part in plan.parts))
