"""Logs that don't show a cause."""

from aboard.diagnoses.diagnosis import Diagnosis

_ALL_LOGS = "aboard why --log LOGS…    # with the logs of all nodes and ranks: shows which rank died first"

INIT_INCOMPLETE = Diagnosis(
    code="log-init-incomplete",
    title="NCCL's initialization began and never finished",
    symptoms=("NCCL INFO ncclCommInitRank comm 0x… rank 0 nranks 8 … - Init START",),
    explanation="NCCL waits indefinitely for ranks that never join: they died earlier, were never started, or can't"
    " reach the address that rank 0 announced. RAS, the flight recorder and the watchdog start only after"
    " this phase, so they can't report it.",
    fixes="ss -tno state syn-sent    # on each node, while the run hangs: every address listed is blocked\n"
    "py-spy dump --pid PID    # of {ranks:shell}: shows where the rank is\n"
    "aboard check --only network    # tests every pair of nodes",
)

PEER_LOST = Diagnosis(
    code="log-peer-lost",
    title="the log only shows that a peer was lost",
    symptoms=(
        "Connection closed by peer [10.0.0.3]:52110",
        "Failed to recv, got 0 bytes. Connection was likely closed.",
    ),
    explanation="A connection broke because the rank at its other end died. This log doesn't show why; that rank's own"
    " log does. With torchrun's c10d rendezvous, clocks more than 15 s apart cause the same messages.",
    fixes=f"{_ALL_LOGS}\nchronyc tracking    # on each node; is a clock off?",
)

UNKNOWN = Diagnosis(
    code="log-unknown",
    title="trouble that Aboard doesn't recognize",
    symptoms=("SomeError: a message that Aboard doesn't recognize",),
    explanation="These lines look like trouble, but Aboard recognizes none of their messages.",
    fixes=f"{_ALL_LOGS}\n"
    "aboard why --report-unknown --log LOG    # prints them redacted, as the text of an issue\n"
    "export NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL    # then rerun, for a more detailed log",
)

RANK_STUCK = Diagnosis(
    code="log-rank-stuck",
    title="a rank is stuck in a collective that the others completed",
    symptoms=("a flight-recorder dump whose oldest open collective is completed in the dumps of all other ranks",),
    explanation="The rank took part in the collective, but its GPU or its process stopped there, so it never went on to"
    " the next one. Usually its GPU failed or hangs, or a kernel before it does.",
    fixes="sudo dmesg -T | grep -i xid    # on the nodes of ranks {ranks}; did a GPU fail?\n"
    "py-spy dump --native --pid PID    # of ranks {ranks}, while the run hangs: where is each?",
)
