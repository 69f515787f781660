"""A login node of a Slurm cluster as the only node of a run: jobs belong on other machines."""

from collections.abc import Iterator

from aboard.core.cluster.cluster import THIS_MACHINE
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Severity
from aboard.doctor.host import diagnoses as host

# The outcome that says that this machine is one, by its hostname.
LOGIN_NODE = "login-node"


def find_login_node(facts: Facts) -> Iterator[Finding]:
    """Slurm runs no jobs here; a blocker if nobody named this machine, or typed --alone."""
    if name := facts.outcomes.get(LOGIN_NODE, ""):
        yield host.LOGIN_NODE.finding(
            nodes=tuple(node.name for node in facts.cluster),
            seen=f"{name} is the only node, and Slurm submits jobs from it and runs none on it",
            fix=host.LOGIN_NODE.fix(),
            severity=Severity.BLOCK if facts.cluster.source == THIS_MACHINE else Severity.WARN,
        )


PROBES = ()
RULES = (find_login_node,)
