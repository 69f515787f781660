"""Events and samples: what a run is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something rare that happened on a node; durable, numbered by its keeper, at the head's corrected time."""

    node: str
    seq: int
    at: float
    kind: str
    child: str = ""
    rank: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A figure of which only the latest value matters: a step, a load, a memory size."""

    node: str
    name: str
    at: float
    value: float
    rank: int | None = None
