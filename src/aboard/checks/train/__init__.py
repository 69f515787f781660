"""What `aboard train` asks of nodes beyond a check, and the stories of what it refuses."""

from aboard.checks.train.cards import CARDS
from aboard.checks.train.stories import STORIES
from aboard.core.rule import Subject

# Its rules need the training as well as the nodes: see boarding.py.
TRAIN = Subject(
    name="train",
    title="the training goes with the nodes",
    probes=(CARDS,),
    rules=(),
    stories=STORIES,
    asked="aboard train",
)
