"""Known messages found in a log, which of two came first, and the result of scanning it."""

from collections.abc import Mapping
from dataclasses import field
from math import inf

from aboard.core.evidence.nccl_ras import RasComm
from aboard.diagnoses import NO_FIX, Advice, Diagnosis, Finding, Fix
from aboard.diagnoses.fixes import FixTemplate, list_blanks
from aboard.diagnoses.output_patterns import OutputPattern
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.logs.nccl_log import NcclLogSummary
from aboard.doctor.logs.trouble import Trouble
from aboard.lazy_dataclass import dataclass


@dataclass(slots=True, kw_only=True)
class Sighting:
    """The first time that a node and rank printed a message, and how often they did.

    `mild` was logged as a warning or lower: by itself it ended nothing. `progress` is how many steps had been read
    until then, `moves` how many lines of any progress, `frame` the user's own line in a traceback, `finding` what a
    report says, not a line.
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
    moves: int = 0
    frame: Untrusted = NO_TEXT
    finding: Finding | None = None

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
    # Communicators of which NCCL's RAS reports that ranks differ, as far as the log shows them.
    ras: tuple[RasComm, ...]
    # Lines that look like trouble and match no message, the worst first.
    troubles: list[Trouble]
    progress: int
    moves: int
    # The time of the last line of progress.
    moved_at: float | None
    # Whether a line says that the run ended well, and whether it made progress up to the end.
    closed: bool
    moving: bool
    # Names of nodes by address and by rank, where lines gave them.
    by_address: Mapping[str, str]
    by_rank: Mapping[int, str]
    # The last lines, for a log without errors or progress.
    last: tuple[Untrusted, ...] = ()
    # What each file is, and whether all of them are reports that say that all is well.
    kinds: tuple[str, ...] = ()
    healthy: bool = False


def _choose_values(template: FixTemplate, values: Mapping[str, str | Untrusted]) -> dict[str, str | Untrusted]:
    """The values for its blanks; a blank without a value in the log shows its name in capitals."""
    return {name: values.get(name) or name.upper() for name in list_blanks(template)}


# Lines of one failure are within this distance, however buffers reordered them.
NEAR_SECONDS = 5.0
NEAR_LINES = 200


def sort_sightings(sightings: list[Sighting]) -> list[Sighting]:
    """The earliest first; reports without a time last. Times of two files are compared only when both have them."""
    timed = all(each.at is not None for each in sightings if each.finding is None)
    if timed:
        return sorted(sightings, key=lambda each: (inf if each.at is None else each.at, each.file, each.line))
    return sorted(sightings, key=lambda each: (each.file, each.line))


def is_clearly_before(one: Sighting, other: Sighting) -> bool:
    """Whether one came so long before the other that the other can't be its cause; False where unknown."""
    if one.at is not None and other.at is not None and (one.file != other.file or one.at != other.at):
        return other.at - one.at > NEAR_SECONDS
    return one.file == other.file and other.line - one.line > NEAR_LINES


def is_near(one: Sighting, other: Sighting) -> bool:
    """Whether the two may be parts of one failure."""
    return not is_clearly_before(one, other) and not is_clearly_before(other, one)
