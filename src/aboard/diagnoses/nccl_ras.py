"""What NCCL's own watch over its ranks, RAS, can tell of."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Command
from aboard.diagnoses.messages import cause, odd
from aboard.diagnoses.steps import CHECK, LOGS

_AGAIN = " `aboard why RUN -v` asks again; on a node, `ncclras -v` shows all that RAS knows, or `echo verbose status |"
_AGAIN += " nc localhost 28028`."
_PROCESS = r" -- GPU .{1,40}? managed by process (?P<pid>\d+) on node (?P<node>\S+)"
_LOOK = {"logs": Command(LOGS), "check": CHECK}

MISSING = Diagnosis(
    code="hang-nccl-missing",
    title="NCCL can't reach some of its ranks",
    severity=Severity.WARN,
    symptoms=(
        "Missing communicator data from 1 job process",
        "job process is considered dead (unreachable via the RAS network)",
        "Missing communicator data from 1 rank",
    ),
    explanation="From 2.24 on, each process of NCCL has a thread that hears the others' every second, apart from"
    " the collectives. It has not heard these: they are stopped or dead, or their network is cut.",
    remedy="Look at the process on its node: its state, its log. `aboard check A B --only network` for the way to"
    " it. NCCL uses the network of its bootstrap for this, NCCL_SOCKET_IFNAME." + _AGAIN,
    fixes=_LOOK,
    log_fix="ps -o pid,stat,wchan:20,etime,cmd -p {pid}    # on {node}; T is stopped, D waits in the kernel\n"
    "aboard check --only network    # with the nodes of the run: is it cut off?",
    patterns=cause(
        r"Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? ",
        "The others' NCCL can't reach this process: it is stopped or has died, or the network to it is cut.",
        weight=2,
    ),
)

APART = Diagnosis(
    code="hang-nccl-apart",
    title="NCCL's ranks are at different collectives",
    severity=Severity.WARN,
    symptoms=(
        "Communicator ranks have different AllReduce operation counts",
        "Communicator ranks have different collective operation counts",
        "Communicator ranks have different status",
        "ranks have launched up to operation 6649",
    ),
    explanation="Few ranks of a communicator have launched another number of collectives than the rest, and"
    " nothing moves: they never came to the one in which the others wait, or went into another one. Counts differ"
    " for moments in every run; that is not told.",
    remedy="Look at what the named rank does: `py-spy dump --pid PID` on its node, and its log. Torch's flight"
    " recorder tells more; it is on in ranks with a beacon, so that this is mostly said of others." + _AGAIN,
    fixes=_LOOK,
    log_fix="py-spy dump --pid {pid}    # on {node}; what it does instead",
    patterns=odd(
        r"Rank (?P<rank>\d+) has (?:launched up to operation \d+|not launched any operations"
        r"|status (?:NOCOMM|UNKNOWN|INIT|FINALIZE|ABORT))" + _PROCESS,
        "This rank is at another collective than the rest. In a run that moves that passes: ask RAS again.",
    ),
)

ERROR = Diagnosis(
    code="hang-nccl-error",
    title="NCCL has failed in some ranks that go on living",
    severity=Severity.WARN,
    symptoms=("Asynchronous error on 1 rank", "Initialization errors on 2 ranks", "reported Unhandled CUDA error"),
    explanation="NCCL met an error in the background. Unless the program asks for it, as torch's watchdog does now"
    " and then, nobody hears of it, and the other ranks wait.",
    remedy="NCCL_DEBUG=WARN makes NCCL say what it was. `Remote process error` only says that another rank has"
    " failed; `Unhandled CUDA error` is the GPU or its program: look for an Xid with `sudo dmesg -T | grep -i xid`."
    + _AGAIN,
    fixes={
        **_LOOK,
        "debug": Command("aboard launch --env NCCL_DEBUG=WARN -- …    # NCCL then says what failed"),
    },
    log_fix="sudo dmesg -T | grep -i xid    # on {node}; did its GPU fail?\n"
    "export NCCL_DEBUG=WARN    # then start again: NCCL says what failed",
    patterns=cause(
        r"Rank (?P<rank>\d+) reported (?!Remote)(?P<error>[A-Z][\w ]{1,40})" + _PROCESS,
        "NCCL has failed in this rank, which lives on: the others wait for it.",
        weight=2,
    ),
)
