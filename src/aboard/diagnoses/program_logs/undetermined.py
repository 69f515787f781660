"""Logs that hold no cause."""

from aboard.diagnoses.diagnosis import Diagnosis

_ALL_LOGS = "aboard why --log LOGS…    # with the logs of all nodes and ranks: the one that died first is named"

INIT_INCOMPLETE = Diagnosis(
    code="log-init-incomplete",
    title="NCCL's set-up began and never ended",
    symptoms=("NCCL INFO ncclCommInitRank comm 0x… rank 0 nranks 8 … - Init START",),
    explanation="NCCL waits without end for ranks that don't come: they died before, were never started, or can't"
    " reach the address that rank 0 told. RAS, the flight recorder and the watchdog all begin after this phase.",
    fixes="ss -tno state syn-sent    # on each node, while it hangs: an address behind the arrow is blocked\n"
    "py-spy dump --pid PID    # of {ranks:shell}: where is it?\n"
    "aboard check --only network    # tries every pair of nodes",
)

PEER_LOST = Diagnosis(
    code="log-peer-lost",
    title="the log only shows that a peer was lost",
    symptoms=(
        "Connection closed by peer [10.0.0.3]:52110",
        "Failed to recv, got 0 bytes. Connection was likely closed.",
    ),
    explanation="A connection broke since the rank at its other end had died. This log holds no cause: that rank's own"
    " log does. With torchrun's c10d rendezvous, clocks more than 15 s apart look the same.",
    fixes=f"{_ALL_LOGS}\nchronyc tracking    # on each node; is a clock off?",
)

UNKNOWN = Diagnosis(
    code="log-unknown",
    title="an error that has no name yet",
    symptoms=("SomeError: words that nobody has seen before",),
    explanation="None of the messages that are known here stands in the log, and it holds errors all the same.",
    fixes=f"{_ALL_LOGS}\n"
    "export NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again, for a log that says more",
)
