"""What only a log can tell, as a subject like those of the checks, so that each code has its page in one way."""

from aboard.core.rule import Subject
from aboard.diagnoses import logs
from aboard.diagnoses.catalogue import diagnoses_in

LOG = Subject(
    name="log",
    title="logs of any launcher, explained",
    probes=(),
    rules=(),
    stories=diagnoses_in(logs),
    asked="aboard why --log FILE",
)
