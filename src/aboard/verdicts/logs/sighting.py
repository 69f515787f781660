"""Known messages found in a log, and the result of scanning it."""

from collections.abc import Mapping
from dataclasses import field

from aboard.diagnoses import NO_FIX, Advice, Diagnosis, Fix
from aboard.diagnoses.fixes import FixTemplate, list_blanks
from aboard.diagnoses.output_patterns import OutputPattern
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.verdicts.logs.nccl_log import NcclLogSummary


@dataclass(slots=True, kw_only=True)
class Sighting:
    """The first time that a node and rank printed a message, and how often they did.

    `mild` was logged as a warning or lower: by itself it ended nothing. `progress` is how many lines of progress
    had been read until then, `frame` the user's own line in a traceback.
    """

    diagnosis: Diagnosis
    message: OutputPattern
    file: int
    line: int
    at: float | None
    text: Untrusted
    node: str = ""
    rank: int | None = None
    local: int | None = None
    groups: Mapping[str, Untrusted] = field(default_factory=dict)
    count: int = 1
    mild: bool = False
    progress: int = 0
    frame: Untrusted = NO_TEXT

    @property
    def code(self) -> str:
        return self.diagnosis.code

    def why(self, values: Mapping[str, str | Untrusted]) -> str:
        """The explanation, with each blank filled in."""
        sentence = Advice(self.message.why or self.diagnosis.explanation)
        return sentence.fill(_choose_values(sentence, values))

    def fix(self, values: Mapping[str, str | Untrusted]) -> Fix:
        """The fix, with each blank filled in; text from the log stays one shell word."""
        templates = self.diagnosis.templates
        variant = next((each for each in (self.message.fix or "log", "") if each in templates), None)
        return NO_FIX if variant is None else self.diagnosis.fix(variant, **_choose_values(templates[variant], values))


@dataclass(slots=True, kw_only=True)
class ScannedLog:
    """What a scan found: sightings in order, unknown errors, and the nodes of ranks and addresses."""

    files: tuple[str, ...]
    lines: int
    sightings: list[Sighting]
    nccl: NcclLogSummary
    unknown: list[Untrusted]
    progress: int
    # Names of nodes by address and by rank, where lines gave them.
    by_address: Mapping[str, str]
    by_rank: Mapping[int, str]
    # The last lines, for a log without errors or progress.
    last: tuple[Untrusted, ...] = ()


def _choose_values(template: FixTemplate, values: Mapping[str, str | Untrusted]) -> dict[str, str | Untrusted]:
    """The values for its blanks; a blank without a value in the log shows its name in capitals."""
    return {name: values.get(name) or name.upper() for name in list_blanks(template)}
