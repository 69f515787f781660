"""The outcome of connecting to a node: the time of each phase, or the phase that failed."""

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass

# `said` starts with this when the login failed because the user has no key.
NO_KEY = "this user has no ssh key on this machine"


@dataclass(frozen=True, kw_only=True)
class ReachedNode:
    """An agent responded. `phases` maps each phase to the seconds from dialling to its end."""

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
    """No agent responded; `said` is the error line of ssh or of the remote side."""

    reason: UnreachableReason
    said: str
    phase: str = ""
    seconds: float = 0.0


Contact: TypeAlias = ReachedNode | UnreachedNode
