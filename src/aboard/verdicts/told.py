"""Every code that can be met, with its story: of checks, of a run's end, of logs, of the data, and of errors."""

from aboard.checks import SUBJECTS
from aboard.checks.train import TRAIN
from aboard.core.rule import Subject
from aboard.data.gate.stories import GATE
from aboard.diagnoses import death, foreign, hang, loss, nccl_ras, rendezvous, slow
from aboard.diagnoses.catalogue import diagnoses_in
from aboard.verdicts.errors import ERRORS
from aboard.verdicts.logs.stories import LOG

# A subject as the checks have them, so that every code has its story and its page in one way.
RUN = Subject(
    name="run",
    title="every rank came to a good end",
    probes=(),
    rules=(),
    stories=tuple(
        each for family in (death, hang, rendezvous, slow, loss, nccl_ras, foreign) for each in diagnoses_in(family)
    ),
    asked="aboard launch -- SCRIPT",
)

TOLD: tuple[Subject, ...] = (*SUBJECTS, RUN, LOG, GATE, TRAIN, *ERRORS)
