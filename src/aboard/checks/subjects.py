"""Preflight: one subject per package, each with its probes and rules; a new one is its package and one line here."""

from aboard.checks.collective import subject as collective
from aboard.checks.container import subject as container
from aboard.checks.fabric import subject as fabric
from aboard.checks.gpu import subject as gpu
from aboard.checks.host import subject as host
from aboard.checks.network import subject as network
from aboard.checks.reach import subject as reach
from aboard.checks.slurm import subject as slurm
from aboard.checks.software import subject as software
from aboard.checks.storage import subject as storage
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
