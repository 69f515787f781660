"""The stories of what ends a training before its first step, or at one."""

from aboard.core.rule import Subject
from aboard.diagnoses import training

TRAINED = Subject(
    name="training",
    title="a training begins, and goes on",
    probes=(),
    rules=(),
    stories=(
        training.CONFIG,
        training.FILE,
        training.MODEL,
        training.ASKED,
        training.GIVEN,
        training.TENSORBOARD,
        training.NONFINITE,
        training.CHECKPOINTING_UNKNOWN,
        training.SHARDING_UNEVEN,
    ),
    asked="aboard train",
)
