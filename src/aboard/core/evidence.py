"""Evidence: what is known of a run when it is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aboard.core.plan import Plan
from aboard.core.run import Run


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`tails` are the last lines of each rank's stderr; `stacks` those of ranks that lived when the first one died."""

    plan: Plan
    run: Run
    tails: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    stacks: Mapping[int, str] = field(default_factory=dict)
