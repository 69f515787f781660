"""What can be wrong with a host, on purpose: `inject` a fault, `heal` it, ask what is `active`."""

from aboard.sandbox.faults.catalogue import FAULTS
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.practice import active, broken, heal, heal_all, inject, kind_of

__all__ = ["FAULTS", "Fault", "active", "broken", "heal", "heal_all", "inject", "kind_of"]
