"""Diagnoses of hangs: ranks that are paused, wait for each other, or lost their links."""

from aboard.diagnoses.diagnosis import RunFailure, run_warning, warning
from aboard.diagnoses.failure_class import FailureClass, RunFix
from aboard.diagnoses.output_patterns import PatternSource, cause
from aboard.diagnoses.shared_fixes import CHECK_NETWORK, LOGS, OPEN, PUT_UP, SAME_CODE

_HOLDERS = "fuser -v {file}    # on {node}; lists the processes that must write to this file or release it"
_STORAGE = (
    "aboard check --only storage    # does the storage respond?"
    " DataLoader(timeout=60) raises an error instead of waiting"
)
_UNHANG = (
    "timeout 5 ls {place}    # on {node}; does it respond?\n"
    "sudo umount -f -l {place}    # on {node}; if it does not: releases the waiting processes\n"
)
_AGAIN = "    # on {node}; once the file server responds; then launch again"

WHY_FAILED = warning(
    code="why-failed",
    title="the diagnosis of a run failed",
    symptoms=("inspecting this run failed: TypeError",),
    explanation="This is a bug in Aboard, not in your run. The run continues, and Aboard will diagnose it again.",
    fixes="aboard logs {run}    # the ranks' last output\n"
    "aboard bundle {run}    # the run's record without secrets, for a bug report",
)

TRACED = run_warning(
    code="hang-traced",
    restart=FailureClass.OUTSIDE,
    title="a debugger has stopped a rank",
    symptoms=("State:\tt (tracing stop)",),
    explanation="gdb, strace or py-spy without --nonblocking has stopped the process. All other ranks are waiting for"
    " this rank.",
    fixes="grep TracerPid /proc/{pid}/status    # on {node}; shows which process must let the rank continue",
)

MOUNT = RunFailure(
    code="hang-mount",
    restart=FailureClass.UNKNOWN,
    title="a rank waits for a file system that does not respond",
    symptoms=(
        "State:\tD (disk sleep)",
        "nfs: server not responding",
        "rpc_wait_bit_killable",
        "blocked for more than 120 seconds",
    ),
    explanation="The rank is blocked in the kernel, in a read or write that does not return. Usually the file system's"
    " server, network or disk is down. Until the call returns, no signal reaches the process.",
    classified_fixes={
        "local": RunFix(FailureClass.NODE, f"{_UNHANG}sudo mount {{place}}{_AGAIN}"),
        "remote": RunFix(FailureClass.OUTSIDE, f"{_UNHANG}sudo mount -t {{kind}} {{source}} {{place}}{_AGAIN}"),
        "check": RunFix(
            FailureClass.OUTSIDE, "{check:shell aboard check NODE --only storage    # shows which mount is dead}"
        ),
    },
)

UNEVEN = RunFailure(
    code="hang-uneven",
    restart=FailureClass.PROGRAM,
    title="some ranks finished while the others wait for them",
    symptoms=("Timed out waiting 1800000ms for recv operation to complete", "last steps hang"),
    explanation="Ranks had different numbers of batches, or one rank left early. The others are waiting in a"
    " collective that the finished ranks never call.",
    fixes="aboard logs {run} --rank {rank}    # why the rank finished early\n"
    "# in the script: DataLoader(…, drop_last=True), or torch.distributed.algorithms.join.Join around the loop",
)

MISMATCH = RunFailure(
    code="hang-mismatch",
    restart=FailureClass.PROGRAM,
    title="ranks are in different collectives",
    symptoms=(
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
        "Detected mismatch between collectives on ranks",
    ),
    explanation="All ranks must issue the same collectives with the same sizes in the same order. Here they diverged,"
    " because the code branches on the rank or its data, or a node has different code or configuration.",
    fixes={
        "software": SAME_CODE,
        "died": f"{SAME_CODE}\naboard logs {{run}} --rank {{rank}}    # the end of the rank's output",
        "logs": LOGS,
        "code": "git status; sha256sum *.py    # on each node, in the script's directory; the code must be the same",
        "detail": "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then restart: torch prints the ranks and both"
        " collectives",
        "code-and-detail": "sha256sum *.py    # on each node, in the script's directory; the code must be the same\n"
        "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then restart: torch prints the ranks and both collectives",
    },
    patterns=(
        cause(
            r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective:", fix="code"
        ),
        cause(r"Message truncated ?: received [\d,]+ bytes instead of", fix="detail"),
        cause(
            r"peer (?P<peer>[\w.:-]+?)<\d+> collective mismatch error, local size \d+ remote size \d+"
            r"|Mismatched? collectives? detected",
            "The two ranks pass different sizes to the same collective, or settings of NCCL (buffer size, protocol,"
            " algorithm) differ between their nodes.",
            fix="code-and-detail",
        ),
        cause(
            r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes",
            fix="code-and-detail",
            weight=2,
            source=PatternSource.LOG | PatternSource.DEATH,
        ),
    ),
)

ORDER = RunFailure(
    code="hang-order",
    restart=FailureClass.PROGRAM,
    title="two process groups wait for each other",
    symptoms=("it hangs with tensor and data parallel groups together",),
    explanation="All ranks must use their process groups in the same order. Some ranks use two groups in a different"
    " order, so each group is waiting for ranks that are waiting in the other group.",
    fixes=SAME_CODE,
)

ABSENT = RunFailure(
    code="hang-absent",
    restart=FailureClass.UNKNOWN,
    title="a rank never reached the collective",
    symptoms=(
        "Timed out waiting 1800000ms for recv operation to complete",
        "Watchdog caught collective operation timeout",
        "Ranks 1 failed to pass monitoredBarrier in 4000 ms",
    ),
    explanation="The rank is idle and has not reached the collective in which all others are waiting.",
    fixes={
        "logs": LOGS,
        "holders": _HOLDERS,
        "barrier": "aboard logs {run} --rank {ranks}    # what the rank did instead",
        "again": "py-spy dump --native --pid {pid}    # on its node, again: does it move, and which C call is it in?",
    },
    log_fix="py-spy dump --pid PID    # while the run hangs, for each of these ranks: {ranks}; shows where the rank is",
    patterns=cause(
        r"\[?Ranks? (?P<ranks>[\d, ]+)\]? (?:failed to pass|timed out in) monitoredBarrier",
        "These ranks did not reach the barrier in which all others were waiting.",
        weight=2,
        source=PatternSource.LOG | PatternSource.DEATH,
    ),
)

BUSY = RunFailure(
    code="hang-busy",
    restart=FailureClass.UNKNOWN,
    title="ranks wait for a rank that is still working",
    symptoms=("the others wait for rank 0 to save",),
    explanation="The rank is doing occasional work (a checkpoint, an evaluation, a compilation), and the others are"
    " waiting for it. To shorten the wait for a checkpoint, use torch.distributed.checkpoint: it writes from all"
    " ranks, and in the background.",
    fixes=LOGS,
)

LOOP = RunFailure(
    code="hang-loop",
    restart=FailureClass.UNKNOWN,
    title="a rank computes while all others wait",
    symptoms=("no heartbeat", "ProcessGroupNCCL's watchdog got stuck"),
    explanation="The rank is in an endless loop, is in code that holds Python's GIL, or has much more work than the"
    " others. The others are waiting for this rank in a collective.",
    fixes=f"{LOGS}\npy-spy dump --pid {{pid}}    # on {{node}}; where is the rank? (needs: pip install py-spy)",
)

DATA = RunFailure(
    code="hang-data",
    restart=FailureClass.UNKNOWN,
    title="a rank waits for data",
    symptoms=("DataLoader worker (pid(s) …) exited unexpectedly", "RuntimeError: DataLoader timed out"),
    explanation="The rank's input does not arrive. Usually a data-loader worker hangs or was killed, or a file or a"
    " service does not respond.",
    fixes={"logs": f"{LOGS}\n{_STORAGE}", "holders": f"{_HOLDERS}\n{_STORAGE}"},
)

LOCK = RunFailure(
    code="hang-lock",
    restart=FailureClass.UNKNOWN,
    title="a rank waits for a lock",
    symptoms=("futex_wait_queue", "deadlock after fork"),
    explanation="Two threads are waiting for each other, or a thread held a lock when the process forked. Workers"
    " started with multiprocessing.set_start_method('spawn') inherit no locks.",
    fixes=f"{LOGS}\npy-spy dump --pid {{pid}}    # on {{node}}; all threads of the rank (needs: pip install py-spy)",
)

OUTSIDE = RunFailure(
    code="hang-outside",
    restart=FailureClass.OUTSIDE,
    title="a rank waits for an external service",
    symptoms=("wandb: Network error", "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out"),
    explanation="The rank is waiting for a service, such as an experiment tracker, the Hugging Face Hub or a database,"
    " that does not respond; all other ranks are waiting for this rank. `WANDB_MODE=offline` and `HF_HUB_OFFLINE=1`"
    " turn off access to two common services.",
    fixes={
        "logs": LOGS,
        "answers": f"{LOGS}\ncurl -v --max-time 5 {{url}}    # on {{node}}; does the service respond?",
    },
)

LINK_CUT = RunFailure(
    code="hang-link-cut",
    restart=FailureClass.TRANSIENT,
    title="connections between ranks carry no data",
    symptoms=("Timed out waiting 5000ms for recv operation to complete", "NET/Socket : peer … unreachable"),
    explanation="Packets between the nodes are lost. A firewall may have been changed, or a route, a switch or a cable"
    " may have failed. TCP retries for minutes; if packets get through again in that time, the run continues.",
    fixes={
        "address": "ip -br address    # on {node}; the NIC must have {address}; if not: ip address add",
        "open": OPEN,
        "check": CHECK_NETWORK,
    },
)

LINK_DOWN = RunFailure(
    code="hang-link-down",
    restart=FailureClass.NODE,
    title="a node's NIC is down",
    symptoms=("NIC Link is Down", "Link is Down"),
    explanation="The NIC that ranks use, its cable, its switch port or its driver is down. Packets are lost, and TCP"
    " retries for minutes.",
    fixes=PUT_UP,
)

BIG_PACKETS = RunFailure(
    code="hang-big-packets",
    restart=FailureClass.TRANSIENT,
    title="large packets are lost, small ones pass",
    symptoms=("init works and the first big all-reduce hangs",),
    explanation="A NIC's MTU is larger than the network can carry, and no router reports it (an MTU black hole). If"
    " you lower the MTU on all nodes, this run continues without a restart.",
    fixes={
        "ping": "ping -c 2 -M do -s 1472 {target}    # on {node}; does a full-size packet pass?",
        "smaller": "sudo ip link set dev {card} mtu {size}    # on {nodes:shell};"
        " keep this MTU until the network can carry larger packets",
    },
)

UNKNOWN = warning(
    code="hang-unknown",
    title="the run hangs for an unknown reason",
    symptoms=("it just hangs",),
    explanation="None of the causes that Aboard checks explains the hang. The finding shows where each rank is in its"
    " code.",
    remedy="Inspect the rank that differs from the others. `aboard why RUN -v` queries the nodes again and shows what"
    " was ruled out.",
    fixes="aboard logs {run} --rank {rank}    # the rank that differs, or else the first rank\n"
    "aboard check    # shows what has changed on the nodes since the launch",
)
