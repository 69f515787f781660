"""What `aboard train` asks of nodes beyond a check, and the stories of what it refuses."""

from aboard.checks.train.cards import CARDS
from aboard.core.rule import Subject
from aboard.diagnoses import training

# Its rules need the training as well as the nodes: see boarding.py.
TRAIN = Subject(
    name="train",
    title="the training goes with the nodes",
    probes=(CARDS,),
    rules=(),
    stories=(
        training.BATCH,
        training.HYBRID,
        training.ATTENTION,
        training.BF16,
        training.PACKAGES,
        training.LENGTH,
        training.VOCABULARY,
        training.MEMORY,
        training.PACKING_UNKNOWN,
    ),
    asked="aboard train",
)
