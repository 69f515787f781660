"""A plan: exactly what will be started where."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aboard.core.node import NO_ENV, Node


@dataclass(frozen=True, kw_only=True)
class Start:
    """One process on a node. Names in `secrets` are env variables whose values may appear nowhere."""

    child: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    secrets: tuple[str, ...] = ()
    cwd: str | None = None
    rank: int | None = None

    def __repr__(self) -> str:
        """Shows no env values: a traceback or a log line is no place for a token."""
        return f"Start(child={self.child!r}, argv={self.argv!r}, env=<{len(self.env)} names>)"


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """What one node starts."""

    node: Node
    starts: tuple[Start, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All nodes' parts, in rank order."""

    run: str
    parts: tuple[NodePlan, ...]
