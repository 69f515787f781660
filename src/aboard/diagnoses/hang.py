"""Why a run that lives does not go on: ranks that are held, that wait for each other, or whose links are dead."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Command
from aboard.diagnoses.messages import Source, cause
from aboard.diagnoses.steps import CHECK, LOGS, OPEN, PUT_UP, SAME_CODE

_LOOK = " `aboard why RUN -v` asks the nodes again and tells what was ruled out."
_HOLDERS = "fuser -v {file}    # on {node}; who else has it, and should let it go or write"
_STORAGE = "aboard check --only storage    # does its storage answer?"
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
    explanation="A mistake of Aboard, not of your run: what was seen on the nodes could not be judged.",
    remedy="The run goes on and is looked at again. `aboard logs RUN` has what ranks said; `aboard bundle RUN`"
    " packs its record without secrets, with which we can mend this.",
    fixes="aboard logs {run}    # what the ranks said last\n"
    "aboard bundle {run}    # the record without secrets: with it we can mend this",
)

TRACED = Diagnosis(
    code="hang-traced",
    title="a debugger holds a rank",
    severity=Severity.WARN,
    symptoms=("State:\tt (tracing stop)",),
    explanation="gdb, strace or py-spy without --nonblocking holds the process; all others wait for it.",
    remedy="Let it go on in the debugger. `grep TracerPid /proc/PID/status` tells who holds it.",
    fixes="grep TracerPid /proc/{pid}/status    # on {node}; who holds it",
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
    explanation="The rank is in the kernel, in a read or a write that never comes back: the server of the mount is"
    " down, or the network to it is. Signals don't reach it there, and torch sees a rank that does not come.",
    remedy="`timeout 5 ls MOUNT` on the node tells whether it answers. Bring the server back, or `sudo umount -f -l"
    " MOUNT`, which lets ranks go with an error, and mount it again; then launch again. `aboard check --only"
    " storage` compares all nodes.",
    fixes={
        "local": Command(f"{_UNHANG}sudo mount {{place}}{_AGAIN}"),
        "remote": Command(f"{_UNHANG}sudo mount -t {{kind}} {{source}} {{place}}{_AGAIN}"),
        "check": CHECK,
    },
)

UNEVEN = Diagnosis(
    code="hang-uneven",
    title="some ranks have finished, the others wait for them",
    symptoms=("Timed out waiting 1800000ms for recv operation to complete", "last steps hang"),
    explanation="Ranks had different numbers of batches, so those with more call a collective that the others"
    " never call.",
    remedy="`DataLoader(drop_last=True)` with a DistributedSampler gives all the same number; or put"
    " `torch.distributed.algorithms.join.Join` around the loop.",
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
    explanation="At the same sequence number, ranks issued different collectives or tensor sizes: a branch that depends"
    " on the rank or on its data, other code or another configuration on one node.",
    remedy="The line of each side is named. `aboard check --only software` compares code and packages of the nodes;"
    " TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch check each call.",
    fixes={
        "software": Command(SAME_CODE),
        "died": Command(f"{SAME_CODE}\naboard logs {{run}} --rank {{rank}}    # all that it said"),
        "logs": Command(LOGS),
        "code": Command(
            "git status; sha256sum *.py    # on each node, where the script is; they must run the same code"
        ),
        "detail": Command(
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again: torch names the ranks and both collectives"
        ),
        "code-and-detail": Command(
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
            source=Source.LOG | Source.DEATH,
        ),
    ),
)

ORDER = Diagnosis(
    code="hang-order",
    title="two process groups wait for each other",
    symptoms=("it hangs with tensor and data parallel groups together",),
    explanation="Some ranks use two groups in another order than the rest: each group waits for ranks that wait in"
    " the other.",
    remedy="Use groups in the same order on all ranks; the lines of both are named.",
    fixes=Command(SAME_CODE),
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
    explanation="All others wait in a collective, and this rank is somewhere else and does nothing.",
    remedy="The line at which it is is named: look there." + _LOOK,
    fixes={
        "logs": Command(LOGS),
        "holders": Command(_HOLDERS),
        "barrier": Command("aboard logs {run} --rank {ranks}    # what it did instead"),
    },
    log_fix="py-spy dump --pid PID    # of rank {ranks}, while it hangs: where is it?",
    patterns=cause(
        r"\[?Ranks? (?P<ranks>[\d, ]+)\]? (?:failed to pass|timed out in) monitoredBarrier",
        "These ranks did not come to the barrier that all others had reached.",
        weight=2,
        source=Source.LOG | Source.DEATH,
    ),
)

BUSY = Diagnosis(
    code="hang-busy",
    title="ranks wait for one that works",
    symptoms=("the others wait for rank 0 to save",),
    explanation="One rank writes a checkpoint, evaluates, compiles or computes while the others wait in a"
    " collective. That is"
    " part of the work, and only told in passing; after minutes it is told as a stall.",
    remedy="If it takes too long: write checkpoints from all ranks (torch.distributed.checkpoint) and in the"
    " background.",
    fixes=Command(LOGS),
)

LOOP = Diagnosis(
    code="hang-loop",
    title="a rank computes while all others wait",
    symptoms=("no heartbeat", "ProcessGroupNCCL's watchdog got stuck"),
    explanation="It is in a loop that does not end, in code that holds Python's lock, or has much more to do than"
    " the others.",
    remedy="`py-spy dump --pid PID` on the node shows where, now and a little later. The line is named.",
    fixes=f"{LOGS}\npy-spy dump --pid {{pid}}    # on {{node}}; where it is (needs py-spy)",
)

DATA = Diagnosis(
    code="hang-data",
    title="a rank waits for data",
    symptoms=("DataLoader worker (pid(s) …) exited unexpectedly", "RuntimeError: DataLoader timed out"),
    explanation="Its loader gives nothing: a worker that hangs or was killed, a file or a store that does not answer.",
    remedy="`aboard check NODE --only storage` for the files. `DataLoader(timeout=60)` raises instead of hanging.",
    fixes={
        "logs": Command(f"{LOGS}\n{_STORAGE}"),
        "holders": Command(f"{_HOLDERS}\n{_STORAGE}"),
    },
)

LOCK = Diagnosis(
    code="hang-lock",
    title="a rank waits for a lock",
    symptoms=("futex_wait_queue", "deadlock after fork"),
    explanation="Two threads wait for each other, or a lock was held by a thread when the process forked.",
    remedy="`py-spy dump --pid PID` shows all threads. Start workers with `multiprocessing.set_start_method('spawn')`.",
    fixes=f"{LOGS}\npy-spy dump --pid {{pid}}    # on {{node}}; all its threads (needs py-spy)",
)

OUTSIDE = Diagnosis(
    code="hang-outside",
    title="a rank waits for a service outside of the run",
    symptoms=("wandb: Network error", "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out"),
    explanation="A tracker, a hub or a data base does not answer, and the rank waits for it while all others wait"
    " for the rank.",
    remedy="Try the address from the node with curl. WANDB_MODE=offline and HF_HUB_OFFLINE=1 take two usual ones away.",
    fixes={
        "logs": Command(LOGS),
        "answers": Command(f"{LOGS}\ncurl -v --max-time 5 {{url}}    # on {{node}}; does it answer?"),
    },
)

LINK_CUT = Diagnosis(
    code="hang-link-cut",
    title="connections between ranks carry nothing any more",
    symptoms=("Timed out waiting 5000ms for recv operation to complete", "NET/Socket : peer … unreachable"),
    explanation="What a rank sends is not acknowledged, again and again: packets are lost between the nodes since"
    " some moment.",
    remedy="A firewall that was changed: the lines that let the peers through until it boots again are told, and"
    " the run goes on once they are typed. Else `aboard check --only network` tells which way is cut: a switch"
    " port, a route.",
    fixes={
        "address": Command("ip -br address    # on {node}; its card must have {address} again: ip address add"),
        "open": OPEN,
        "check": CHECK,
    },
)

LINK_DOWN = Diagnosis(
    code="hang-link-down",
    title="the network card of a node is down",
    symptoms=("NIC Link is Down", "Link is Down"),
    explanation="The card that ranks use has lost its carrier; TCP keeps trying for minutes.",
    remedy="`sudo ip link set dev CARD up` on the node, if somebody switched it off; else reseat the cable, look at"
    " the switch's port.",
    fixes=PUT_UP,
)

BIG_PACKETS = Diagnosis(
    code="hang-big-packets",
    title="large packets are lost, small ones pass",
    symptoms=("init works and the first big all-reduce hangs",),
    explanation="A card's MTU is larger than the network carries, and nobody tells: an MTU black hole.",
    remedy="`ping -M do -s 8972 PEER` finds the size that passes. `sudo ip link set dev CARD mtu 1400` on all nodes"
    " lets even the same run go on; then set the same MTU on all nodes and switches.",
    fixes={
        "ping": Command("ping -c 2 -M do -s 1472 {target}    # on {node}; does a full packet pass?"),
        "smaller": Command(
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
    explanation="None of what could be seen explains it. What is known is told: where the ranks are in their code.",
    remedy="Look at the rank that differs from the others." + _LOOK,
    fixes="aboard logs {run} --rank {rank}    # the one that differs, or the first\n"
    "aboard check    # what has changed on the nodes since the start",
)
