"""NCCL's RAS, as `ncclras -v` prints it: whom it can't reach, who has failed, who is at another collective."""

from aboard.verdicts.logs.symptom import Symptom, cause, odd

_PROCESS = r" -- GPU .{1,40}? managed by process (?P<pid>\d+) on node (?P<node>\S+)"

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "hang-nccl-missing",
        r"Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? ",
        "The others' NCCL can't reach this process: it is stopped or has died, or the network to it is cut.",
        "ps -o pid,stat,wchan:20,etime,cmd -p {pid}    # on {node}; T is stopped, D waits in the kernel",
        "aboard check --only network    # with the nodes of the run: is it cut off?",
        weight=2,
    ),
    cause(
        "hang-nccl-error",
        r"Rank (?P<rank>\d+) reported (?!Remote)(?P<error>[A-Z][\w ]{1,40})" + _PROCESS,
        "NCCL has failed in this rank, which lives on: the others wait for it.",
        "sudo dmesg -T | grep -i xid    # on {node}; did its GPU fail?",
        "export NCCL_DEBUG=WARN    # then start again: NCCL says what failed",
        weight=2,
    ),
    odd(
        "hang-nccl-apart",
        r"Rank (?P<rank>\d+) has (?:launched up to operation \d+|not launched any operations"
        r"|status (?:NOCOMM|UNKNOWN|INIT|FINALIZE|ABORT))" + _PROCESS,
        "This rank is at another collective than the rest. In a run that moves that passes: ask RAS again.",
        "py-spy dump --pid {pid}    # on {node}; what it does instead",
    ),
)
