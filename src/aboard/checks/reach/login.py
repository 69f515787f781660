"""A slow login, by the phase that took the time: each phase waits for something else."""

from collections.abc import Iterator
from itertools import pairwise

from aboard.core.facts import Facts
from aboard.core.reach import Reached
from aboard.diagnoses import Diagnosis, Finding, Severity

SLOW_SECONDS = 3.0
# What our own load can explain: a handshake takes this machine up to 150 ms of a core, and 64 are under way at once.
OWN_SECONDS = 0.2
MOST_AT_ONCE = 64

# In the order of a login: what it waited for, and what to look at.
_PHASES = {
    "connected": (
        "the TCP connection",
        "getent hosts {target}    # here; is the name slow, or the way there?\nping -c 3 {target}    # here",
    ),
    "greeted": (
        "the first word of its sshd",
        (
            "uptime    # on {node}; is it overloaded? An sshd behind a proxy or a TCP wrapper asks DNS first\n"
            "sudo systemctl restart ssh    # on {node}; if it is not: sshd itself may be stuck, or short of places"
        ),
    ),
    "keys": ("the key exchange", "uptime    # on {node}; is it overloaded? The key exchange is plain work"),
    "logged-in": (
        "the login itself",
        (
            "echo 'UseDNS no' | sudo tee /etc/ssh/sshd_config.d/00-dns.conf    # on {node}\n"
            "sudo systemctl reload ssh    # on {node}\n"
            "time ls -d ~    # on {node}; is the home directory on a dead or slow mount?"
        ),
    ),
    "agent": (
        "the shell and Python",
        "time {python} -c pass    # on {node}; if that is quick, the shell's start-up files (~/.bashrc) are slow",
    ),
}


def slow_login(facts: Facts) -> Iterator[Finding]:
    """Every launch pays it on each node; it is often the first sign of a dead DNS server or home directory."""
    took = {name: _durations(contact) for name, contact in facts.contacts.items() if isinstance(contact, Reached)}
    most = OWN_SECONDS * min(len(took), MOST_AT_ONCE)
    for phase, (what, fix) in _PHASES.items():
        seconds = {name: durations[phase] for name, durations in took.items() if phase in durations}
        late = [name for name in seconds if seconds[name] >= SLOW_SECONDS]
        slow = [name for name in late if seconds[name] - _ours(seconds, name, most) >= SLOW_SECONDS]
        for name in slow:
            node = facts.cluster.node(name)
            yield Finding(
                code="reach-slow-login",
                severity=Severity.WARN,
                nodes=(name,),
                seen=f"{what} took {seconds[name]:.1f} s",
                why="Every launch waits for it, and it is often the first sign of a dead name server or file server.",
                fix=fix.format(node=name, target=node.target, python=node.python),
            )


def _ours(seconds: dict[str, float], name: str, most: float) -> float:
    """What may be our own load: what three of four other nodes stay below, as far as load can explain that."""
    others = sorted(other for node, other in seconds.items() if node != name)
    return min(others[len(others) * 3 // 4], most) if others else 0.0


def _durations(contact: Reached) -> dict[str, float]:
    """How long each phase took; a phase that left no time stamp counts for the next one."""
    ends = [("", 0.0), *((phase, contact.phases[phase]) for phase in _PHASES if phase in contact.phases)]
    return {phase: end - before for (_, before), (phase, end) in pairwise(ends)}


STORIES = (
    Diagnosis(
        code="reach-slow-login",
        title="a login takes many seconds",
        severity=Severity.WARN,
        symptoms=("ssh takes 10 to 60 seconds to log in", "the launch of one node lags behind the others"),
        explanation="A login has phases: the TCP connection, sshd's greeting, the key exchange, the login, the shell."
        " Each waits for something else. Most often sshd asks a name server that doesn't answer (UseDNS, GSSAPI), or"
        " the home directory is on a file server that doesn't. What this machine's own load may explain, since all"
        " nodes are dialled at once, is taken off by comparing with the other nodes.",
        remedy="`ssh -v NODE true` shows where it stops. For the login phase: `UseDNS no` and `GSSAPIAuthentication no`"
        " in /etc/ssh/sshd_config of the node, then `sudo systemctl reload ssh`; and `time ls -d ~` there for the home"
        " directory. For the TCP phase look at `getent hosts NODE` on this machine. For the shell, look at what"
        " ~/.bashrc does: `conda init` alone may take a second, and more on a network file system.",
    ),
)
