"""Preflight: one subject per package, each with its probes and rules; a new one is its package and one line in `SUBJECTS`."""

from aboard.checks import collective, container, fabric, gpu, host, network, reach, slurm, software, storage
from aboard.core.probes.check_subject import Subject

SUBJECTS: tuple[Subject, ...] = (
    reach.SUBJECT,
    slurm.SUBJECT,
    host.SUBJECT,
    network.SUBJECT,
    fabric.SUBJECT,
    gpu.SUBJECT,
    container.SUBJECT,
    software.SUBJECT,
    storage.SUBJECT,
    collective.SUBJECT,
)
