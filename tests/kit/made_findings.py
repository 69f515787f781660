"""Findings with arbitrary codes, for tests."""

from typing import Any

from aboard.diagnoses import Finding, Fix
from aboard.diagnoses.catalogue import recall_diagnosis


def made_finding(*, code: str, fix: str, **fields: Any) -> Finding:
    """A finding of this code, declared or not."""
    return Finding(diagnosis=recall_diagnosis(code), fix=Fix(fix), **fields)
