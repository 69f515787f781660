"""A diagnosis: a failure that we can name."""

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum

from aboard.diagnoses.fixes import Fix, Template, Value
from aboard.lazy import dataclass


class Severity(IntEnum):
    """`BLOCK` stops a launch, `WARN` doesn't, `INFO` is worth a line."""

    INFO = 1
    WARN = 2
    BLOCK = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One failure: its stable code, and all that `aboard why CODE` and its page of the docs say about it.

    `severity` is the worst that it has by itself. `symptoms` are texts that people paste into a search box. `fixes` are
    the commands and pieces of advice that a finding can carry, by the name of the variant; a single one may have no
    name. `remedy` tells in prose how to go about it. `leads_to` names the codes that it explains on the same nodes.
    `aliases` are codes that it had, or has on another route.
    """

    code: str
    title: str
    severity: Severity
    explanation: str
    remedy: str
    symptoms: tuple[str, ...] = ()
    fixes: Template | Mapping[str, Template] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    leads_to: tuple[str, ...] = ()

    def fix(self, variant: str = "", /, **values: Value) -> Fix:
        """One of its fixes, with the values filled in."""
        return Fix(self.templates[variant].fill(values), variant=variant, values=values)

    @property
    def templates(self) -> Mapping[str, Template]:
        return self.fixes if isinstance(self.fixes, Mapping) else {"": self.fixes}
