"""All symptoms: the first that fits a line speaks for it, so the more special ones stand first."""

from aboard.verdicts.logs.families import (
    cuda,
    disk,
    gloo,
    launcher,
    memory,
    nccl_init,
    nccl_net,
    python_env,
    ras,
    slurm,
    ssh,
    store,
    training,
    watchdog,
)
from aboard.verdicts.logs.symptom import Symptom

SYMPTOMS: tuple[Symptom, ...] = (
    *store.SYMPTOMS,
    *watchdog.SYMPTOMS,
    *memory.SYMPTOMS,
    *nccl_net.SYMPTOMS,
    *nccl_init.SYMPTOMS,
    *gloo.SYMPTOMS,
    *cuda.SYMPTOMS,
    *ras.SYMPTOMS,
    *ssh.SYMPTOMS,
    *slurm.SYMPTOMS,
    *disk.SYMPTOMS,
    *python_env.SYMPTOMS,
    *training.SYMPTOMS,
    *launcher.SYMPTOMS,
)
