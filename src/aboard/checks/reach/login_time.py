"""A slow login, by the phase that took the time: each phase waits for something else."""

from collections.abc import Iterator
from itertools import pairwise

from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding
from aboard.diagnoses.nodes import reach

SLOW_SECONDS = 3.0
# The head's own load: a handshake takes up to 150 ms of a core, and 64 run at once.
OWN_SECONDS = 0.2
MOST_AT_ONCE = 64

# In login order: what took the time, and the variant of the fix.
_PHASES = {
    "connected": ("the TCP connection", "connect"),
    "greeted": ("the sshd banner", "greeting"),
    "keys": ("the key exchange", "keys"),
    "logged-in": ("authentication", "login"),
    "agent": ("starting the shell and Python", "shell"),
}


def find_slow_logins(facts: Facts) -> Iterator[Finding]:
    """Every launch pays for a slow login; it is often the first sign of a dead DNS server or home directory."""
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
    """The part that the head's own load may explain: the third quartile of the other nodes, up to `most`."""
    others = sorted(other for node, other in seconds.items() if node != name)
    return min(others[len(others) * 3 // 4], most) if others else 0.0


def _compute_durations(contact: ReachedNode) -> dict[str, float]:
    """How long each phase took; a phase without a time stamp counts toward the next one."""
    ends = [("", 0.0), *((phase, contact.phases[phase]) for phase in _PHASES if phase in contact.phases)]
    return {phase: end - before for (_, before), (phase, end) in pairwise(ends)}
