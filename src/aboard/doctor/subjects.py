"""Preflight: one subject per package, each with its probes and rules; a new one is its package and two lines here."""

from aboard.core.probes.check_subject import Subject
from aboard.doctor.collective import subject as collective
from aboard.doctor.compute import subject as compute
from aboard.doctor.container import subject as container
from aboard.doctor.fabric import subject as fabric
from aboard.doctor.gpu import subject as gpu
from aboard.doctor.host import subject as host
from aboard.doctor.network import subject as network
from aboard.doctor.reach import subject as reach
from aboard.doctor.slurm import subject as slurm
from aboard.doctor.software import subject as software
from aboard.doctor.storage import subject as storage

SUBJECTS: tuple[Subject, ...] = (
    reach.SUBJECT,
    slurm.SUBJECT,
    host.SUBJECT,
    network.SUBJECT,
    fabric.SUBJECT,
    gpu.SUBJECT,
    compute.SUBJECT,
    container.SUBJECT,
    software.SUBJECT,
    storage.SUBJECT,
    collective.SUBJECT,
)
