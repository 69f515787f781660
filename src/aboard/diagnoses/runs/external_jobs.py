"""What only a look at somebody else's training can have."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import FixCommand

_ASK_AGAIN = "    # on {nodes:shell}; then ask again"

RANKS_MISSING = Diagnosis(
    code="why-ranks-missing",
    title="some ranks of a training were not found",
    severity=Severity.WARN,
    symptoms=("Waiting for clients", "Timed out after 601 seconds waiting for clients. 4/8 clients joined."),
    explanation="They are on nodes that were not asked, run as another user, were never started, or have ended: then"
    " all others wait for them.",
    remedy="Name all nodes: `aboard why --nodes gpu[01-08]`. If the ranks have ended, the output of their launcher says"
    " why: `aboard why --log FILE`.",
    fixes={
        "few": FixCommand("aboard why --nodes {nodes:words} …    # with all nodes of the training"),
        "many": FixCommand("aboard why --nodes {nodes:shell} …    # with all nodes of the training"),
    },
)

NODE_UNHEARD = Diagnosis(
    code="why-node-unheard",
    title="a node could not be asked about a training",
    severity=Severity.WARN,
    symptoms=("ssh: connect to host gpu03 port 22: Connection timed out",),
    explanation="What its ranks do is not known, and a node that can't be reached is often the cause itself.",
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
    " has to be on PATH or in the training's environment, and the kernel has to allow it: with ptrace_scope=1, Ubuntu's"
    " default, a process may only look at its own children. It neither stops the rank nor sends it a signal.",
    fixes={
        "look": FixCommand("py-spy dump --pid {pid}" + _ASK_AGAIN),
        "threads": FixCommand("py-spy dump --pid {pid}    # on {node}; all its threads"),
        "install": FixCommand("{python} -m pip install py-spy" + _ASK_AGAIN),
        "scope": FixCommand("sudo sysctl kernel.yama.ptrace_scope=0" + _ASK_AGAIN),
        "sudo": FixCommand("sudo {program} dump --pid {pid}" + _ASK_AGAIN),
    },
)

OTHER_RUN = Diagnosis(
    code="why-other-run",
    title="another training runs on the same nodes",
    severity=Severity.INFO,
    symptoms=("two jobs on one node", "EADDRINUSE", "CUDA out of memory"),
    explanation="Its ranks meet at another MASTER_ADDR or MASTER_PORT. Two trainings share cores, memory and links; the"
    " newest one was judged, and this one may be a leftover, which `kill` ends.",
    fixes="aboard why --pid {pid}    # on {node}; looks at that one, as far as it is there",
)
