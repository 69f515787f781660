"""What `aboard train` probes beyond a check, and the diagnoses of what it refuses."""

from dataclasses import replace

from aboard.core.probes.check_subject import Subject
from aboard.doctor.gpu.cuda_support import CUDA, find_cuda_problems
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS
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
# What a training run asks even with `--check none`: otherwise it could run on the CPUs of GPU nodes.
ESSENTIAL = replace(TRAIN, probes=(GPU_SPECS, DRIVER, GPUS, CUDA))


def leave_out_cuda(subject: Subject) -> Subject:
    """A training run refuses nodes whose GPUs torch can't use; the check's own warning would say the same again."""
    return replace(subject, rules=tuple(rule for rule in subject.rules if rule is not find_cuda_problems))
