"""Diagnoses of runs that make progress, but slowly."""

from aboard.diagnoses.diagnosis import run_warning
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice

_QUOTA = "    # on {node}; lasts until the quota is set again; or request more cores from Slurm or Kubernetes"
_MEASURE = "{check:shell aboard check NODES --only network    # measures the links; so does --only collective}"

RANK = run_warning(
    code="slow-rank",
    restart=FailureClass.UNKNOWN,
    title="one rank delays all others",
    symptoms=("straggler",),
    explanation="The rank arrives last at nearly every collective, and all others wait for it each time.",
    fixes="py-spy dump --pid {pid}    # on {node}, a few times: where is the rank? (needs: pip install py-spy)",
)

THROTTLED = run_warning(
    code="slow-throttled",
    restart=FailureClass.UNKNOWN,
    title="a node's cgroup is throttled",
    symptoms=("nr_throttled", "throttled_usec"),
    explanation="A Slurm, Kubernetes or Docker quota gives the node's ranks less CPU time than they need. All other"
    " ranks wait for them in each collective.",
    fixes={
        "group": "cat /proc/self/cgroup    # on {node}; raise that cgroup's cpu.max, or request more cores",
        "quota": "echo max | sudo tee {file}" + _QUOTA,
        "quota-v1": "echo -1 | sudo tee {file}" + _QUOTA,
    },
)

NEIGHBOUR = run_warning(
    code="slow-neighbour",
    restart=FailureClass.UNKNOWN,
    title="another process uses a rank's cores",
    symptoms=("load average",),
    explanation="Another process was using the cores while the rank's threads were ready to run. All other ranks wait"
    " for this rank in each collective.",
    fixes="ps -o pid,user,etime,cmd -p {pid}    # on {node}; move this process,"
    " or give the run its own cores: aboard launch --bind",
)

DISK = run_warning(
    code="slow-disk",
    restart=FailureClass.UNKNOWN,
    title="a rank waits for its disk",
    symptoms=("%iowait",),
    explanation="The rank spends most of its time in the kernel, waiting for a disk or a mount.",
    fixes="iostat -x 1 3    # on {node}; which disk is busy? put the data on a faster one",
)

DATA = run_warning(
    code="slow-data",
    restart=FailureClass.UNKNOWN,
    title="a rank waits for its data",
    symptoms=("GPU utilization drops to 0",),
    explanation="The rank's batches arrive later than the other ranks' batches.",
    fixes=Advice("# use more workers and prefetching: DataLoader(num_workers=…, prefetch_factor=…), or faster storage"),
)

LINK = run_warning(
    code="slow-link",
    restart=FailureClass.UNKNOWN,
    title="a link between nodes is slow or loses packets",
    symptoms=("TCP retransmissions", "busbw is much lower than expected"),
    explanation="The link carries less than the ranks send, or loses packets. Usually a NIC, a cable or a switch port"
    " is faulty or overloaded. Every collective waits for this link.",
    fixes={"errors": "ip -s link    # on {nodes:shell}; shows errors and drops\n" + _MEASURE, "check": _MEASURE},
)
