"""Why a run that moves is slow."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, FixCommand

_QUOTA = "    # on {node}; until it is set again: for good, ask Slurm or Kubernetes for more cores"
_MEASURE = "{check:shell aboard check NODES --only network    # measures it, as --only collective does}"

RANK = Diagnosis(
    code="slow-rank",
    title="one rank keeps all others waiting",
    severity=Severity.WARN,
    symptoms=("straggler",),
    explanation="It comes last to nearly every collective, and all others wait for it each time.",
    fixes="py-spy dump --pid {pid}    # on {node}, a few times: where its time goes (needs py-spy)",
)

THROTTLED = Diagnosis(
    code="slow-throttled",
    title="a node's control group is throttled",
    severity=Severity.WARN,
    symptoms=("nr_throttled", "throttled_usec"),
    explanation="A quota of Slurm, Kubernetes or Docker gives its ranks less CPU time than they need, and all others"
    " wait for them in each collective.",
    fixes={
        "group": FixCommand("cat /proc/self/cgroup    # on {node}; raise cpu.max of that group, or ask for more cores"),
        "quota": FixCommand("echo max | sudo tee {file}" + _QUOTA),
        "quota-v1": FixCommand("echo -1 | sudo tee {file}" + _QUOTA),
    },
)

NEIGHBOUR = Diagnosis(
    code="slow-neighbour",
    title="another process takes a rank's cores",
    severity=Severity.WARN,
    symptoms=("load average",),
    explanation="The rank's threads could run and had no core; the process that took them is named.",
    fixes="ps -o pid,user,etime,cmd -p {pid}    # on {node}; move it, or give the run its own cores: launch --bind",
)

DISK = Diagnosis(
    code="slow-disk",
    title="a rank waits for its disk",
    severity=Severity.WARN,
    symptoms=("%iowait",),
    explanation="It is in the kernel for a disk or a mount most of the time.",
    fixes="iostat -x 1 3    # on {node}; which disk is busy? put the data on a faster one",
)

DATA = Diagnosis(
    code="slow-data",
    title="a rank waits for its data",
    severity=Severity.WARN,
    symptoms=("GPU utilization drops to 0",),
    explanation="Its batches come later than those of the others.",
    fixes=Advice("# more workers and prefetching: DataLoader(num_workers=…, prefetch_factor=…), or data closer by"),
)

LINK = Diagnosis(
    code="slow-link",
    title="a link between nodes is slow or loses packets",
    severity=Severity.WARN,
    symptoms=("TCP retransmissions", "busbw is much lower than expected"),
    explanation="The link carries less than ranks send, or loses packets (a NIC, a cable or a switch port is broken or"
    " overrun), and every collective waits for it.",
    fixes={
        "errors": FixCommand("ip -s link    # on {nodes:shell}; errors and drops\n" + _MEASURE),
        "check": FixCommand(_MEASURE),
    },
)
