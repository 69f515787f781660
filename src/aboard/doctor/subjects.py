"""Preflight: the subjects with probes and rules, each the `SUBJECT` of its own package, as the catalogue lists them."""

from importlib import import_module

from aboard.core.probes.check_subject import Subject
from aboard.diagnoses.catalogue import TOPICS


def _load_subject(name: str) -> Subject:
    subject: Subject = import_module(f"aboard.doctor.{name}.subject").SUBJECT
    return subject


SUBJECTS = tuple(_load_subject(topic.name) for topic in TOPICS if topic.families and not topic.title)
