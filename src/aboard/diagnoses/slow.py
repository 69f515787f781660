"""Why a run that moves is slow."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command
from aboard.diagnoses.steps import CHECK

_QUOTA = "    # on {node}; until it is set again: for good, ask Slurm or Kubernetes for more cores"

RANK = Diagnosis(
    code="slow-rank",
    title="one rank keeps all others waiting",
    severity=Severity.WARN,
    symptoms=("straggler",),
    explanation="It comes last to nearly every collective, and all others wait for it each time.",
    remedy="`py-spy dump --pid PID` on its node, a few times, shows where its time goes; compare the node by"
    " `aboard check`.",
    fixes="py-spy dump --pid {pid}    # on {node}; where it is (needs py-spy)",
)

THROTTLED = Diagnosis(
    code="slow-throttled",
    title="a node's control group is throttled",
    severity=Severity.WARN,
    symptoms=("nr_throttled", "throttled_usec"),
    explanation="The job may use less time of the cores than it sees cores: a quota of Slurm, Kubernetes or Docker.",
    remedy="Raise the quota where it is set: the file is told, `max` in cpu.max or -1 in cpu.cfs_quota_us is no"
    " quota. For good, ask for more CPUs, or start fewer threads.",
    fixes={
        "group": Command("cat /proc/self/cgroup    # on {node}; raise cpu.max of that group, or ask for more cores"),
        "quota": Command("echo max | sudo tee {file}" + _QUOTA),
        "quota-v1": Command("echo -1 | sudo tee {file}" + _QUOTA),
    },
)

NEIGHBOUR = Diagnosis(
    code="slow-neighbour",
    title="another process takes a rank's cores",
    severity=Severity.WARN,
    symptoms=("load average",),
    explanation="The rank's threads could run and had no core; the process that took them is named.",
    remedy="Move the other process, or give the run cores of its own: `aboard launch --bind`.",
    fixes="ps -o pid,user,etime,cmd -p {pid}    # on {node}; move it, or the run",
)

DISK = Diagnosis(
    code="slow-disk",
    title="a rank waits for its disk",
    severity=Severity.WARN,
    symptoms=("%iowait",),
    explanation="It is in the kernel for a disk or a mount most of the time.",
    remedy="`iostat -x 1` on the node; put the data on a faster disk.",
    fixes="iostat -x 1 3    # on {node}; which disk is busy?",
)

DATA = Diagnosis(
    code="slow-data",
    title="a rank waits for its data",
    severity=Severity.WARN,
    symptoms=("GPU utilization drops to 0",),
    explanation="Its batches come later than those of the others.",
    remedy="More workers and prefetching in its DataLoader, or data that is closer by.",
    fixes=Advice("# more workers: DataLoader(num_workers=…), or data closer by"),
)

LINK = Diagnosis(
    code="slow-link",
    title="a link between nodes is slow or loses packets",
    severity=Severity.WARN,
    symptoms=("TCP retransmissions", "busbw is much lower than expected"),
    explanation="Bytes stand in a queue before it, or are sent again: every collective waits for the slowest link.",
    remedy="`aboard check --only network` and `--only collective` measure each link; look at the card, the cable,"
    " the switch.",
    fixes={
        "errors": Command("ip -s link    # on {nodes:shell}; errors and drops\n{check:shell}"),
        "check": CHECK,
    },
)
