"""The stories of models that ranks can't load."""

from aboard.core.rule import Subject
from aboard.diagnoses import model
from aboard.diagnoses.catalogue import diagnoses_in

MODEL = Subject(
    name="model",
    title="every rank can load the model",
    probes=(),
    rules=(),
    stories=diagnoses_in(model),
    asked="aboard train",
)
