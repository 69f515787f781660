"""Every code that can be met, with its story: those of checks, of a run's end, and of the data."""

from aboard.checks import SUBJECTS
from aboard.core.rule import Subject
from aboard.data.gate.stories import GATE
from aboard.verdicts.stories import STORIES

# A subject as the checks have them, so that every code has its story and its page in one way.
RUN = Subject(
    name="run",
    title="every rank came to a good end",
    probes=(),
    rules=(),
    stories=STORIES,
    asked="aboard launch -- SCRIPT",
)

TOLD: tuple[Subject, ...] = (*SUBJECTS, RUN, GATE)
