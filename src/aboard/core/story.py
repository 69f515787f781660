"""A story: the long version of a finding's code, for `aboard why CODE` and for the page of the docs."""

from aboard.diagnoses import Severity
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a code means: how it shows (texts that people paste into a search box), why it happens, how to mend it.

    `leads_to` names the codes that it explains on the same nodes: mended, they are gone too. `severity` is the worst
    that it can have by itself.
    """

    code: str
    title: str
    severity: Severity
    shows: tuple[str, ...]
    why: str
    mend: str
    leads_to: tuple[str, ...] = ()
