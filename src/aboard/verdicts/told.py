"""Every code that can be met, with its story: of checks, of a run's end, of logs, of the data, and of errors."""

from aboard.checks import SUBJECTS
from aboard.checks.train import TRAIN
from aboard.core.rule import Subject
from aboard.data.gate.stories import GATE
from aboard.verdicts.errors import ERRORS
from aboard.verdicts.foreign_stories import FOREIGN
from aboard.verdicts.live_stories import LIVE
from aboard.verdicts.logs.stories import LOG
from aboard.verdicts.ras_stories import RAS
from aboard.verdicts.stories import STORIES

# A subject as the checks have them, so that every code has its story and its page in one way.
RUN = Subject(
    name="run",
    title="every rank came to a good end",
    probes=(),
    rules=(),
    stories=(*STORIES, *LIVE, *RAS, *FOREIGN),
    asked="aboard launch -- SCRIPT",
)

TOLD: tuple[Subject, ...] = (*SUBJECTS, RUN, LOG, GATE, TRAIN, *ERRORS)
