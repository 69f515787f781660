"""What `aboard train` probes beyond a check, and the diagnoses of what it refuses."""

from aboard.core.probes.check_subject import Subject
from aboard.trainer.checks.node_gpus import GPU_SPECS
from aboard.trainer.diagnoses import adapter, training

# Its rules need the training as well as the nodes: see training_rules.py.
TRAIN = Subject(
    name="train",
    title="the training run fits the nodes",
    probes=(GPU_SPECS,),
    rules=(),
    diagnoses=(
        *(training.BATCH, training.HYBRID, training.DEVICE, training.ATTENTION, training.BF16),
        *(adapter.DROPOUT, adapter.TARGETS, adapter.TIED, adapter.BASE_TYPE, adapter.QUANTIZED, adapter.FILES),
        *(training.PACKAGES, training.LENGTH, training.VOCABULARY, training.MEMORY),
        *(training.PACKING_UNKNOWN, training.CHUNKED_LOSS),
    ),
    asked="aboard train",
)
