"""The stories of what ends a training before its first step, or at one."""

from aboard.core.rule import Subject
from aboard.diagnoses import training
from aboard.diagnoses.catalogue import diagnoses_in

TRAINED = Subject(
    name="training",
    title="a training begins, and goes on",
    probes=(),
    rules=(),
    stories=diagnoses_in(training),
    asked="aboard train",
)
