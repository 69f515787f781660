"""Clocks: how far each node's is from this machine's, measured as it was contacted."""

from collections.abc import Iterator
from typing import Any

from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe
from aboard.diagnoses import Finding, Severity
from aboard.doctor.host import diagnoses as host

# torchrun's c10d rendezvous considers a peer whose clock is 15 s off dead, and then runs with a smaller world.
CLOCK_BLOCK_SECONDS = 10.0
CLOCK_WARN_SECONDS = 1.0


def find_clock_offsets(facts: Facts) -> Iterator[Finding]:
    """Clocks that disagree break rendezvous and munge, and put events in the wrong order."""
    for name, contact in facts.contacts.items():
        if not isinstance(contact, ReachedNode):
            continue
        # The part of the offset that the round trip may explain doesn't count.
        surely = max(0.0, abs(contact.clock_offset) - contact.round_trip / 2)
        if surely >= CLOCK_WARN_SECONDS:
            side = "ahead of" if contact.clock_offset > 0 else "behind"
            yield host.CLOCK.finding(
                severity=Severity.BLOCK if surely >= CLOCK_BLOCK_SECONDS else Severity.WARN,
                nodes=(name,),
                seen=f"its clock is {abs(contact.clock_offset):.1f} s {side} this machine's",
                fix=host.CLOCK.fix(node=name),
            )


PROBES: tuple[Probe[Any], ...] = ()
RULES = (find_clock_offsets,)
