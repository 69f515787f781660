"""A slow login, by the phase that took the time: each phase waits for something else."""

from collections.abc import Iterator
from itertools import pairwise

from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding
from aboard.diagnoses.nodes import reach

SLOW_SECONDS = 3.0
# What our own load can explain: a handshake takes this machine up to 150 ms of a core, and 64 are under way at once.
OWN_SECONDS = 0.2
MOST_AT_ONCE = 64

# In the order of a login: what it waited for, and which fix says what to look at.
_PHASES = {
    "connected": ("the TCP connection", "connect"),
    "greeted": ("the first word of its sshd", "greeting"),
    "keys": ("the key exchange", "keys"),
    "logged-in": ("the login itself", "login"),
    "agent": ("the shell and Python", "shell"),
}


def find_slow_logins(facts: Facts) -> Iterator[Finding]:
    """Every launch pays it on each node; it is often the first sign of a dead DNS server or home directory."""
    took = {
        name: _compute_durations(contact)
        for name, contact in facts.contacts.items()
        if isinstance(contact, ReachedNode)
    }
    most = OWN_SECONDS * min(len(took), MOST_AT_ONCE)
    for phase, (what, variant) in _PHASES.items():
        seconds = {name: durations[phase] for name, durations in took.items() if phase in durations}
        late = [name for name in seconds if seconds[name] >= SLOW_SECONDS]
        slow = [name for name in late if seconds[name] - _estimate_own_load(seconds, name, most) >= SLOW_SECONDS]
        for name in slow:
            node = facts.cluster.node(name)
            yield reach.SLOW_LOGIN.finding(
                nodes=(name,),
                seen=f"{what} took {seconds[name]:.1f} s",
                fix=reach.SLOW_LOGIN.fix(variant, node=name, target=node.target, python=node.python),
            )


def _estimate_own_load(seconds: dict[str, float], name: str, most: float) -> float:
    """What may be our own load: what three of four other nodes stay below, as far as load can explain that."""
    others = sorted(other for node, other in seconds.items() if node != name)
    return min(others[len(others) * 3 // 4], most) if others else 0.0


def _compute_durations(contact: ReachedNode) -> dict[str, float]:
    """How long each phase took; a phase that left no time stamp counts for the next one."""
    ends = [("", 0.0), *((phase, contact.phases[phase]) for phase in _PHASES if phase in contact.phases)]
    return {phase: end - before for (_, before), (phase, end) in pairwise(ends)}
