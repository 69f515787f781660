"""The stories of checkpoints: what keeps one from being written, found again or handed over."""

from aboard.core.rule import Subject
from aboard.diagnoses import checkpoint
from aboard.diagnoses.catalogue import diagnoses_in

CHECKPOINTS = Subject(
    name="checkpoint",
    title="what was trained is kept, found again and handed over",
    probes=(),
    rules=(),
    stories=diagnoses_in(checkpoint),
    asked="aboard train",
)
