"""torch's watchdog over NCCL: collectives that didn't end. Who is behind is worked out in `verdicts.nccl`."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, wait

SYMPTOMS: tuple[Symptom, ...] = (
    # The same sentence since 1.13; NumelIn and NumelOut from 2.1 on.
    wait(
        "log-collective-timeout",
        r"(?:Watchdog caught|caught) collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)",
        "The collective was not done within its time-out: a rank never came to it, or the network carried nothing.",
        "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1    # then start again: the flight"
        " recorder keeps who was where",
        "py-spy dump --pid PID    # of each rank, while it hangs: who is outside of the collective?",
    ),
    wait(
        "log-watchdog-stuck",
        r"watchdog got stuck for (?P<limit>\d+) seconds|Heartbeat monitor timed out"
        r"|detected no heartbeat of its watchdog",
        "torch's own watchdog could not run: a thread holds Python's lock (GIL) in a long call, or CUDA itself hangs.",
        "py-spy dump --native --pid PID    # while it hangs: which thread holds the GIL?",
        "sudo dmesg -T | grep -i xid    # on {node}; a GPU that hangs says so here",
        weight=1,
    ),
    cause(
        "hang-mismatch",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective:",
        "Two ranks met in different collectives: a branch that only some of them take, or data of different length.",
        "git status; sha256sum *.py    # on each node, where the script is; they must run the same code",
        weight=3,
    ),
    echo(
        r"taking the entire process down|NCCL watchdog thread terminated with exception"
        r"|some rank has detected a timeout"
    ),
    echo(r"Observed flight recorder dump signal from another rank|Received a dump signal (?:due to|from)"),
    echo(r"Some NCCL operations have failed or timed out\. Due to the asynchronous"),
    echo(r"(?:Exception \(either an error or timeout\)|failure) detected by watchdog at work"),
    echo(r"Timeout at NCCL work: \d+|preparing to dump debug info|Terminating the process after attempting to dump"),
)
