"""Diagnoses that NCCL's RAS subsystem reports."""

from aboard.diagnoses.diagnosis import run_warning
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.output_patterns import cause, odd
from aboard.diagnoses.shared_fixes import LOGS

_PROCESS = r" -- GPU .{1,40}? managed by process (?P<pid>\d+) on node (?:unknown|(?P<node>\S+))"
_INSPECT = {
    "logs": LOGS,
    "check": "{check:shell aboard check NODES}",
    "ras": "ncclras -v    # on a node; prints the full RAS report; or: echo verbose status | nc localhost 28028",
}

MISSING = run_warning(
    code="hang-nccl-missing",
    restart=FailureClass.UNKNOWN,
    title="NCCL can't reach some of its ranks",
    symptoms=(
        "Missing communicator data from 1 job process",
        "job process is considered dead (unreachable via the RAS network)",
        "Missing communicator data from 1 rank",
    ),
    explanation="Each NCCL process (2.24 or later) has a RAS thread that answers queries even while collectives wait."
    " If it does not answer, the process is stopped or dead, or the network that NCCL_SOCKET_IFNAME selects is down.",
    fixes=_INSPECT,
    log_fix="ps -o pid,stat,wchan:20,etime,cmd -p {pid}    # on {node}; T is stopped, D is blocked in the kernel\n"
    "aboard check --only network    # with all nodes of the run; is {node} unreachable?",
    patterns=cause(
        r"Process (?P<pid>\d+) on node (?:unknown|(?P<node>\S+)) managing GPUs? (?:\d+, rank (?P<rank>\d+))?", weight=2
    ),
)

APART = run_warning(
    code="hang-nccl-apart",
    restart=FailureClass.UNKNOWN,
    title="NCCL's ranks are at different collectives",
    symptoms=(
        "Communicator ranks have different AllReduce operation counts",
        "Communicator ranks have different collective operation counts",
        "Communicator ranks have different status",
        "ranks have launched up to operation 6649",
    ),
    explanation="One rank has not reached the collective in which the others are waiting, or it issued a different"
    " one. Each side is waiting for the other.",
    fixes=_INSPECT,
    log_fix="py-spy dump --pid {pid}    # on {node}; shows what the rank does instead",
    patterns=odd(
        r"Rank (?P<rank>\d+) has (?:launched up to operation \d+|not launched any operations"
        r"|status (?:NOCOMM|UNKNOWN|INIT|FINALIZE|ABORT))" + _PROCESS,
        "This rank is at a different collective than the rest. This is normal while a run makes progress, so run"
        " ncclras again.",
    ),
)

ERROR = run_warning(
    code="hang-nccl-error",
    restart=FailureClass.UNKNOWN,
    title="NCCL failed in ranks that are still running",
    symptoms=("Asynchronous error on 1 rank", "Initialization errors on 2 ranks", "reported Unhandled CUDA error"),
    explanation="NCCL failed in this rank, but the rank's program did not notice or did not exit, so the others are"
    " waiting for it. `Remote process error` only means that another rank failed.",
    fixes={**_INSPECT, "debug": "aboard launch --env NCCL_DEBUG=WARN -- …    # NCCL then logs what failed"},
    log_fix="sudo dmesg -T | grep -i xid    # on {node}; did its GPU fail?\n"
    "export NCCL_DEBUG=WARN    # then restart the run: NCCL logs what failed",
    patterns=cause(r"Rank (?P<rank>\d+) reported (?!Remote)(?P<error>[A-Z][\w ]{1,40})" + _PROCESS, weight=2),
)
