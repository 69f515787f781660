"""The stories of data that can't be read or prepared at all, before the gate has a say."""

from aboard.core.rule import Subject
from aboard.diagnoses import data
from aboard.diagnoses.catalogue import diagnoses_in

PREPARED = Subject(
    name="preparing",
    title="data can be read and prepared",
    probes=(),
    rules=(),
    stories=diagnoses_in(data),
    asked="aboard data FILE…",
)
