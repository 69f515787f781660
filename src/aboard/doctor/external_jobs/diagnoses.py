"""Diagnoses of jobs that another launcher started."""

from aboard.diagnoses.diagnosis import remark, warning

_THEN_RERUN = "    # on {nodes:shell}; then run aboard why again"

RANKS_MISSING = warning(
    code="why-ranks-missing",
    title="some ranks of the job were not found",
    symptoms=("Waiting for clients", "Timed out after 601 seconds waiting for clients. 4/8 clients joined."),
    explanation="The missing ranks are on nodes that were not queried, run as a different user, were never started, or"
    " have exited. If they have exited, all other ranks are waiting for them.",
    remedy="Pass all nodes: `aboard why --nodes gpu[01-08]`. If the ranks have exited, the launcher's output shows"
    " why: `aboard why --log FILE`.",
    fixes={
        "few": "aboard why --nodes {nodes:words} …    # with all nodes of the job",
        "many": "aboard why --nodes {nodes} …    # with all nodes of the job",
    },
)

NODE_UNHEARD = warning(
    code="why-node-unheard",
    title="a node could not be queried",
    symptoms=("ssh: connect to host gpu03 port 22: Connection timed out",),
    explanation="The state of the node's ranks is unknown. An unreachable node is often the reason why the job hangs.",
    fixes="aboard check {node} --only reach",
)

NO_STACKS = remark(
    code="why-no-stacks",
    title="a rank's stacks could not be read",
    symptoms=(
        "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
        "Operation not permitted (os error 1)",
    ),
    explanation="Aboard uses py-spy to read the stacks of ranks that it did not start; py-spy does not pause or signal"
    " them. py-spy must be on PATH or in the job's environment, and the kernel must allow it: with ptrace_scope=1,"
    " Ubuntu's default, a process can only inspect its own children.",
    fixes={
        "look": "py-spy dump --pid {pid}" + _THEN_RERUN,
        "threads": "py-spy dump --pid {pid}    # on {node}; shows all threads of the rank",
        "install": "{python} -m pip install py-spy" + _THEN_RERUN,
        "scope": "sudo sysctl kernel.yama.ptrace_scope=0" + _THEN_RERUN,
        "sudo": "sudo {program} dump --pid {pid}" + _THEN_RERUN,
    },
)

OTHER_RUN = remark(
    code="why-other-run",
    title="another job runs on the same nodes",
    symptoms=("two jobs on one node", "EADDRINUSE", "CUDA out of memory"),
    explanation="A second job on these nodes uses a different MASTER_ADDR or MASTER_PORT, and the two jobs share"
    " cores, memory and links. Aboard diagnosed the newest job; if the second one is left over from"
    " an earlier run, end it with `kill`.",
    fixes="aboard why --pid {pid}    # on {node}; diagnoses that job's ranks on this node",
)
