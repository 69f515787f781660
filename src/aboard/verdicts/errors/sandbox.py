"""The stories of a practice cluster that can't be had, or can't be broken as asked."""

from aboard.core.rule import Subject
from aboard.diagnoses import sandbox
from aboard.diagnoses.catalogue import diagnoses_in

SANDBOX = Subject(
    name="sandbox",
    title="there is a practice cluster",
    probes=(),
    rules=(),
    stories=diagnoses_in(sandbox),
    asked="aboard sandbox",
)
