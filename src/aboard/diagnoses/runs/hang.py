"""Why a run that lives does not go on: ranks that are held, that wait for each other, or whose links are dead."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import FixCommand
from aboard.diagnoses.messages import MessageSource, cause
from aboard.diagnoses.shared_fixes import CHECK_NETWORK, LOGS, OPEN, PUT_UP, SAME_CODE

_HOLDERS = "fuser -v {file}    # on {node}; who else has it, and should let it go or write"
_STORAGE = "aboard check --only storage    # does its storage answer? DataLoader(timeout=60) raises instead of waiting"
_UNHANG = (
    "timeout 5 ls {place}    # on {node}; does it answer?\n"
    "sudo umount -f -l {place}    # on {node}; if not: lets those go who wait for it\n"
)
_AGAIN = "    # on {node}; when its server answers again; then launch again"

WHY_FAILED = Diagnosis(
    code="why-failed",
    title="the look at a run failed",
    severity=Severity.WARN,
    symptoms=("the look at this run failed: TypeError",),
    explanation="This is a bug in Aboard, not in your run, which goes on and will be looked at again.",
    fixes="aboard logs {run}    # what the ranks said last\n"
    "aboard bundle {run}    # its record without secrets, for a bug report",
)

TRACED = Diagnosis(
    code="hang-traced",
    title="a debugger holds a rank",
    severity=Severity.WARN,
    symptoms=("State:\tt (tracing stop)",),
    explanation="gdb, strace or py-spy without --nonblocking holds the process; all other ranks wait for it.",
    fixes="grep TracerPid /proc/{pid}/status    # on {node}; who holds it, and has to let it continue",
)

MOUNT = Diagnosis(
    code="hang-mount",
    title="a rank waits for a file system that does not answer",
    symptoms=(
        "State:\tD (disk sleep)",
        "nfs: server not responding",
        "rpc_wait_bit_killable",
        "blocked for more than 120 seconds",
    ),
    explanation="The rank is in the kernel, in a read or write that never returns: the server of the file system, its"
    " network or its disk is down. No signal reaches a process there.",
    fixes={
        "local": FixCommand(f"{_UNHANG}sudo mount {{place}}{_AGAIN}"),
        "remote": FixCommand(f"{_UNHANG}sudo mount -t {{kind}} {{source}} {{place}}{_AGAIN}"),
        "check": FixCommand("{check:shell aboard check NODE --only storage    # which one is dead}"),
    },
)

UNEVEN = Diagnosis(
    code="hang-uneven",
    title="some ranks have finished, the others wait for them",
    symptoms=("Timed out waiting 1800000ms for recv operation to complete", "last steps hang"),
    explanation="Ranks had different numbers of batches, or one left early: the others wait for it in a collective"
    " that it never calls.",
    fixes="aboard logs {run} --rank {rank}    # why it had nothing more to do\n"
    "# in the script: DataLoader(…, drop_last=True), or torch.distributed.algorithms.join.Join around the loop",
)

MISMATCH = Diagnosis(
    code="hang-mismatch",
    aliases=("log-mismatch",),
    title="ranks are in different collectives",
    symptoms=(
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
        "Detected mismatch between collectives on ranks",
    ),
    explanation="All ranks must make the same calls with the same sizes, in the same order. A branch that depends on"
    " the rank or its data, or different code or configuration on a node, made them diverge.",
    fixes={
        "software": FixCommand(SAME_CODE),
        "died": FixCommand(f"{SAME_CODE}\naboard logs {{run}} --rank {{rank}}    # all that it said"),
        "logs": FixCommand(LOGS),
        "code": FixCommand(
            "git status; sha256sum *.py    # on each node, where the script is; they must run the same code"
        ),
        "detail": FixCommand(
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again: torch names the ranks and both collectives"
        ),
        "code-and-detail": FixCommand(
            "sha256sum *.py    # on each node, where the script is; they must be the same\n"
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again: torch names the ranks and both collectives"
        ),
    },
    patterns=(
        cause(
            r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective:", fix="code"
        ),
        cause(r"Message truncated ?: received [\d,]+ bytes instead of", fix="detail"),
        cause(
            r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes",
            fix="code-and-detail",
            weight=2,
            source=MessageSource.LOG | MessageSource.DEATH,
        ),
    ),
)

ORDER = Diagnosis(
    code="hang-order",
    title="two process groups wait for each other",
    symptoms=("it hangs with tensor and data parallel groups together",),
    explanation="All ranks must use their process groups in the same order. Some use two in another order: each group"
    " waits for ranks that wait in the other.",
    fixes=SAME_CODE,
)

ABSENT = Diagnosis(
    code="hang-absent",
    aliases=("log-rank-behind",),
    title="a rank never came to the collective",
    symptoms=(
        "Timed out waiting 1800000ms for recv operation to complete",
        "Watchdog caught collective operation timeout",
        "Ranks 1 failed to pass monitoredBarrier in 4000 ms",
    ),
    explanation="It does nothing, and has not come to the collective in which all others wait.",
    fixes={
        "logs": FixCommand(LOGS),
        "holders": FixCommand(_HOLDERS),
        "barrier": FixCommand("aboard logs {run} --rank {ranks}    # what it did instead"),
    },
    log_fix="py-spy dump --pid PID    # of rank {ranks}, while it hangs: where is it?",
    patterns=cause(
        r"\[?Ranks? (?P<ranks>[\d, ]+)\]? (?:failed to pass|timed out in) monitoredBarrier",
        "These ranks did not come to the barrier that all others had reached.",
        weight=2,
        source=MessageSource.LOG | MessageSource.DEATH,
    ),
)

BUSY = Diagnosis(
    code="hang-busy",
    title="ranks wait for one that works",
    symptoms=("the others wait for rank 0 to save",),
    explanation="It does what a run has to do now and then (a checkpoint, an evaluation, a compilation), and the others"
    " wait for it. torch.distributed.checkpoint writes from all ranks, and in the background.",
    fixes=LOGS,
)

LOOP = Diagnosis(
    code="hang-loop",
    title="a rank computes while all others wait",
    symptoms=("no heartbeat", "ProcessGroupNCCL's watchdog got stuck"),
    explanation="It is in a loop that does not end, in code that holds Python's GIL, or has much more to do than the"
    " others, which wait for it in a collective.",
    fixes=f"{LOGS}\npy-spy dump --pid {{pid}}    # on {{node}}; where it is (needs py-spy)",
)

DATA = Diagnosis(
    code="hang-data",
    title="a rank waits for data",
    symptoms=("DataLoader worker (pid(s) …) exited unexpectedly", "RuntimeError: DataLoader timed out"),
    explanation="Its input does not come: a worker hangs or was killed, or a file or a service does not answer.",
    fixes={"logs": FixCommand(f"{LOGS}\n{_STORAGE}"), "holders": FixCommand(f"{_HOLDERS}\n{_STORAGE}")},
)

LOCK = Diagnosis(
    code="hang-lock",
    title="a rank waits for a lock",
    symptoms=("futex_wait_queue", "deadlock after fork"),
    explanation="Two threads wait for each other, or a thread held a lock when the process forked; workers that are"
    " started with multiprocessing.set_start_method('spawn') don't inherit one.",
    fixes=f"{LOGS}\npy-spy dump --pid {{pid}}    # on {{node}}; all its threads (needs py-spy)",
)

OUTSIDE = Diagnosis(
    code="hang-outside",
    title="a rank waits for a service outside of the run",
    symptoms=("wandb: Network error", "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out"),
    explanation="A tracker, a hub or a database does not answer, and all others wait for the rank that waits for it."
    " With WANDB_MODE=offline and HF_HUB_OFFLINE=1, two common ones are not asked.",
    fixes={
        "logs": FixCommand(LOGS),
        "answers": FixCommand(f"{LOGS}\ncurl -v --max-time 5 {{url}}    # on {{node}}; does it answer?"),
    },
)

LINK_CUT = Diagnosis(
    code="hang-link-cut",
    title="connections between ranks carry nothing any more",
    symptoms=("Timed out waiting 5000ms for recv operation to complete", "NET/Socket : peer … unreachable"),
    explanation="Packets between the nodes are lost: a firewall was changed, or a route, a switch or a cable failed."
    " TCP tries again for minutes, and the run goes on if they pass again.",
    fixes={
        "address": FixCommand("ip -br address    # on {node}; its card must have {address} again: ip address add"),
        "open": OPEN,
        "check": CHECK_NETWORK,
    },
)

LINK_DOWN = Diagnosis(
    code="hang-link-down",
    title="the network card of a node is down",
    symptoms=("NIC Link is Down", "Link is Down"),
    explanation="The NIC that ranks use, its cable, its switch port or its driver is down: packets go nowhere, and TCP"
    " tries for minutes.",
    fixes=PUT_UP,
)

BIG_PACKETS = Diagnosis(
    code="hang-big-packets",
    title="large packets are lost, small ones pass",
    symptoms=("init works and the first big all-reduce hangs",),
    explanation="The MTU of a NIC is larger than what the network carries, and no router says so: an MTU black hole."
    " A smaller MTU on all nodes lets even this run continue.",
    fixes={
        "ping": FixCommand("ping -c 2 -M do -s 1472 {target}    # on {node}; does a full packet pass?"),
        "smaller": FixCommand(
            "sudo ip link set dev {card} mtu {size}    # on {nodes:shell};"
            " until the network carries what the cards send"
        ),
    },
)

UNKNOWN = Diagnosis(
    code="hang-unknown",
    title="nothing moves, and no rule knows why",
    severity=Severity.WARN,
    symptoms=("it just hangs",),
    explanation="None of what could be seen explains it. What is known is where the ranks are in their code.",
    remedy="Look at the rank that differs from the others. `aboard why RUN -v` asks the nodes again and shows what was"
    " ruled out.",
    fixes="aboard logs {run} --rank {rank}    # the one that differs, or the first\n"
    "aboard check    # what has changed on the nodes since the start",
)
