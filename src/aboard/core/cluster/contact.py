"""The outcome of a login to a node: its phases, and where it failed."""

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass

# How `said` begins where a login failed because this user has no key to offer.
NO_KEY = "this user has no ssh key on this machine"


@dataclass(frozen=True, kw_only=True)
class ReachedNode:
    """An agent responded. `phases` are seconds since dialling at which each phase was over."""

    hostname: str
    user: str
    address: str
    python: str
    round_trip: float
    clock_offset: float
    phases: Mapping[str, float] = field(default_factory=dict)
    drops: int = 0
    noise: str = ""


@dataclass(frozen=True, kw_only=True)
class UnreachedNode:
    """No agent responded; `said` is the far end's or ssh's own line."""

    reason: UnreachableReason
    said: str
    phase: str = ""
    seconds: float = 0.0


Contact: TypeAlias = ReachedNode | UnreachedNode
