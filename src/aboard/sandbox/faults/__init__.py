"""Faults for the hosts of a sandbox: inject one, heal it, list the active ones."""

from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.inject_and_heal import (
    FAULTS,
    find_fault_class,
    heal_all_faults,
    heal_fault,
    inject_fault,
    inject_temporarily,
    list_active_faults,
)

__all__ = [
    "FAULTS", "Fault", "find_fault_class", "heal_all_faults", "heal_fault", "inject_fault", "inject_temporarily",
    "list_active_faults",
]  # fmt: skip
