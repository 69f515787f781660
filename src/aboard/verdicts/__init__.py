"""Rules over what a run left behind, of the same shape as those in `checks`: the earliest cause, not the cascade."""

from aboard.checks import SUBJECTS
from aboard.core.rule import Subject
from aboard.verdicts.stories import STORIES

# A subject as the checks have them, so that every code has its story and its page in one way.
RUN = Subject(name="run", title="every rank came to a good end", probes=(), rules=(), stories=STORIES)

TOLD: tuple[Subject, ...] = (*SUBJECTS, RUN)
