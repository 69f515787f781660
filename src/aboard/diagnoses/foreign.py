"""What only a look at somebody else's training can have."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Command

_ASK_AGAIN = "    # on {nodes:shell}; then ask again"

RANKS_MISSING = Diagnosis(
    code="why-ranks-missing",
    title="some ranks of a training were not found",
    severity=Severity.WARN,
    symptoms=("Waiting for clients", "Timed out after 601 seconds waiting for clients. 4/8 clients joined."),
    explanation="WORLD_SIZE says how many ranks there are, and on the nodes that were asked fewer were found."
    " Either not all nodes were named, or these ranks were never started, or they have died and their launcher has"
    " not noticed: the others then wait in a collective or in the store.",
    remedy="Name all nodes: `aboard why --nodes gpu[01-08]`. If the ranks are gone, the output of their node's"
    " launcher tells why: `aboard why --log FILE`. Ranks of another user are seen by that user only.",
    fixes={
        "few": Command("aboard why --nodes {nodes:words} …    # with all nodes of the training"),
        "many": Command("aboard why --nodes {nodes:shell} …    # with all nodes of the training"),
    },
)

NODE_UNHEARD = Diagnosis(
    code="why-node-unheard",
    title="a node could not be asked about a training",
    severity=Severity.WARN,
    symptoms=("ssh: connect to host gpu03 port 22: Connection timed out",),
    explanation="No agent could be started there, or it gave no answer in time. What the ranks of that node do is"
    " not known, and a node that can't be reached is often the cause itself.",
    fixes="aboard check {node} --only reach",
)

NO_STACKS = Diagnosis(
    code="why-no-stacks",
    title="the stacks of a rank could not be read",
    severity=Severity.INFO,
    symptoms=(
        "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
        "Operation not permitted (os error 1)",
    ),
    explanation="A rank that Aboard did not start has no beacon in it, so py-spy reads its stacks from outside. It"
    " has to be installed on the node, and the kernel has to allow it: with kernel.yama.ptrace_scope=1, Ubuntu's"
    " default, a process may only look at its own children.",
    remedy="`pip install py-spy` in the training's own environment on each node; Aboard finds it there or on PATH."
    " `sudo sysctl kernel.yama.ptrace_scope=0` allows it until the next boot. py-spy is called with --nonblocking:"
    " the rank is neither stopped nor sent a signal.",
    fixes={
        "look": Command("py-spy dump --pid {pid}" + _ASK_AGAIN),
        "threads": Command("py-spy dump --pid {pid}    # on {node}; all its threads"),
        "install": Command("{python} -m pip install py-spy" + _ASK_AGAIN),
        "scope": Command("sudo sysctl kernel.yama.ptrace_scope=0" + _ASK_AGAIN),
        "sudo": Command("sudo {program} dump --pid {pid}" + _ASK_AGAIN),
    },
)

OTHER_RUN = Diagnosis(
    code="why-other-run",
    title="another training runs on the same nodes",
    severity=Severity.INFO,
    symptoms=("two jobs on one node", "EADDRINUSE", "CUDA out of memory"),
    explanation="Processes with RANK and WORLD_SIZE that meet at another MASTER_ADDR or MASTER_PORT belong to"
    " another training. The newest one is judged, and the others are listed: they may be leftovers of an attempt"
    " that failed.",
    remedy="`aboard why --pid PID` on its node looks at that one; `kill PID` ends what is not wanted any more.",
    fixes="aboard why --pid {pid}    # on {node}; looks at that one, as far as it is there",
)
