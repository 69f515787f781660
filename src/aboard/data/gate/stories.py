"""The long stories of the gate's codes. Without numpy: `aboard why` tells them in the light install, too."""

from aboard.core.rule import Subject
from aboard.diagnoses import data_quality
from aboard.diagnoses.catalogue import diagnoses_in

STORIES = diagnoses_in(data_quality)

GATE = Subject(
    name="data",
    title="rows can be learned from as they are",
    probes=(),
    rules=(),
    stories=STORIES,
    asked="aboard data FILE…",
)
