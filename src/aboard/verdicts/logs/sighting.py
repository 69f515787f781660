"""Symptoms as they were seen in a log, and all that one reading of it gives."""

from collections.abc import Mapping
from dataclasses import field

from aboard.lazy import dataclass
from aboard.verdicts.logs.symptom import Symptom
from aboard.verdicts.nccl import NcclLog


@dataclass(slots=True, kw_only=True)
class Sighting:
    """The first time that a node and rank showed a symptom, and how often they did.

    `mild` was told as a warning or an information: by itself it ended nothing. `progress` is how many lines of progress
    had been read until then, `frame` the user's own line in a traceback.
    """

    symptom: Symptom
    file: int
    line: int
    at: float | None
    text: str
    node: str = ""
    rank: int | None = None
    local: int | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    mild: bool = False
    progress: int = 0
    frame: str = ""


@dataclass(slots=True, kw_only=True)
class Reading:
    """What was read: sightings in the order in which they came, what nobody knows, and who is who."""

    files: tuple[str, ...]
    lines: int
    sightings: list[Sighting]
    nccl: NcclLog
    unknown: list[str]
    progress: int
    # Names of nodes by address, by process and by rank, as far as lines told.
    by_address: Mapping[str, str]
    by_rank: Mapping[int, str]
    # The last words, for a log that says nothing wrong and nothing right.
    last: tuple[str, ...] = ()
