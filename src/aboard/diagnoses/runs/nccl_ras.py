"""What NCCL's own watch over its ranks, RAS, can tell of."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import FixCommand
from aboard.diagnoses.messages import cause, odd
from aboard.diagnoses.shared_fixes import LOGS

_PROCESS = r" -- GPU .{1,40}? managed by process (?P<pid>\d+) on node (?P<node>\S+)"
_LOOK = {
    "logs": FixCommand(LOGS),
    "check": FixCommand("{check:shell aboard check NODES}"),
    "ras": FixCommand("ncclras -v    # on a node; all that RAS knows; or: echo verbose status | nc localhost 28028"),
}

MISSING = Diagnosis(
    code="hang-nccl-missing",
    title="NCCL can't reach some of its ranks",
    severity=Severity.WARN,
    symptoms=(
        "Missing communicator data from 1 job process",
        "job process is considered dead (unreachable via the RAS network)",
        "Missing communicator data from 1 rank",
    ),
    explanation="Each NCCL process (from 2.24 on) has a thread that answers even while its collectives wait: this one"
    " is stopped or has died, or the network to it (that of NCCL_SOCKET_IFNAME) is cut.",
    fixes=_LOOK,
    log_fix="ps -o pid,stat,wchan:20,etime,cmd -p {pid}    # on {node}; T is stopped, D waits in the kernel\n"
    "aboard check --only network    # with the nodes of the run: is it cut off?",
    patterns=cause(r"Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? ", weight=2),
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
    explanation="It has not come to the collective in which the others wait, or calls another one: each waits for the"
    " other.",
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
    explanation="NCCL has failed in this rank, and its program has not noticed or not ended: the others wait for it."
    " `Remote process error` only says that another rank has failed.",
    fixes={**_LOOK, "debug": FixCommand("aboard launch --env NCCL_DEBUG=WARN -- …    # NCCL then says what failed")},
    log_fix="sudo dmesg -T | grep -i xid    # on {node}; did its GPU fail?\n"
    "export NCCL_DEBUG=WARN    # then start again: NCCL says what failed",
    patterns=cause(r"Rank (?P<rank>\d+) reported (?!Remote)(?P<error>[A-Z][\w ]{1,40})" + _PROCESS, weight=2),
)
