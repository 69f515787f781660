"""Preflight: one subject a file, each a few probes and rules; to add one, write its file and one line here."""

from aboard.checks import collective, fabric, gpu, host, network, reach, software, storage
from aboard.core.probes.check_subject import Subject

SUBJECTS: tuple[Subject, ...] = (
    reach.SUBJECT,
    host.SUBJECT,
    network.SUBJECT,
    fabric.SUBJECT,
    gpu.SUBJECT,
    software.SUBJECT,
    storage.SUBJECT,
    collective.SUBJECT,
)
