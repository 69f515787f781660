"""The stories of files that can't be brought to a node."""

from aboard.core.rule import Subject
from aboard.diagnoses import spread
from aboard.diagnoses.catalogue import diagnoses_in

SPREAD = Subject(
    name="spread",
    title="every node has the files that ranks read",
    probes=(),
    rules=(),
    stories=diagnoses_in(spread),
    asked="aboard train",
)
