"""What logs tell of the rendezvous and of collectives: messages of torch's store and watchdog, NCCL and Gloo.

Texts of torch 1.13 to 2.13 and NCCL 2.14 to 2.30.
"""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import FixCommand
from aboard.diagnoses.messages import cause, wait

_STORE_PEER = r"\(?\[?(?P<peer>[\w.:-]+?)\]?[,:] ?(?P<port>\d+)\)?"

STORE_UNREACHABLE = Diagnosis(
    code="log-store-unreachable",
    title="the store of rank 0 can't be reached",
    symptoms=(
        "The client socket has timed out after 600000ms while trying to connect to (n1, 29500).",
        "The connection to the C10d store has failed. See inner exception for details.",
    ),
    explanation="torch says the same for three things: nobody listens there (rank 0 isn't up, or the address is not"
    " its own), a firewall drops the packets, or the name is unknown on this node.",
    fixes={
        "peer": FixCommand(
            "getent hosts {peer}    # on the node that waits; nothing means that the name is unknown\n"
            "timeout 3 bash -c '</dev/tcp/$0/$1' {peer} {port}; echo $?    # there: 0 open, 1 refused, 124 dropped\n"
            "ss -ltn | grep {port}    # on {peer}; does rank 0 listen?"
        ),
        "master": FixCommand(
            "getent hosts $MASTER_ADDR    # on the node that waits\n"
            "timeout 3 bash -c '</dev/tcp/ADDRESS/PORT'; echo $?    # there: 0 open, 1 refused, 124 dropped"
        ),
        "endpoint": FixCommand(
            "ss -ltn | grep 29500    # on the node of --rdzv-endpoint; does torchrun listen?\n"
            "getent hosts ENDPOINT; hostname -I    # there: is the endpoint one of its own addresses?"
        ),
    },
    patterns=(
        # One sentence for a refused connection, a dropped one and an unknown name; up to 2.2 without the milliseconds.
        wait(r"client socket has timed out after (?P<limit>\S+) while trying to connect to " + _STORE_PEER, fix="peer"),
        wait(r"client socket has failed to connect to any network address of " + _STORE_PEER, fix="peer"),
        # Up to 1.10.
        wait(r"connect\(\) timed out\. Original timeout was (?P<limit>\d+) ms", fix="master"),
        wait(
            r"RendezvousConnectionError: The connection to the C10d store has failed",
            "The rendezvous endpoint did not answer: it isn't up, a firewall is between, or no node takes the name"
            " of the endpoint for its own, so that nobody hosts the store.",
            fix="endpoint",
            weight=1,
        ),
    ),
)

CLIENTS_MISSING = Diagnosis(
    code="log-clients-missing",
    title="not all ranks came to the rendezvous",
    symptoms=(
        "Timed out after 301 seconds waiting for clients. 6/8 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    explanation="{came} of {world} ranks came. The others never started, can't reach rank 0, or were given another"
    " world size; torch doesn't say which.",
    fixes={
        "ranks": FixCommand(
            "grep -L 'Init\\|loss\\|rank' LOGS…    # which node's log is empty, or ends early? the reason is there\n"
            "echo $RANK $WORLD_SIZE $MASTER_ADDR    # on each node, where ranks start: all ranks once, one world size"
        ),
        "nodes": FixCommand(
            "ps -ef | grep torchrun    # on each node; does it run, with the same --rdzv-id and --rdzv-endpoint?\n"
            "chronyc tracking    # on each node; clocks more than 15 s apart take nodes for dead"
        ),
    },
    patterns=(
        wait(
            r"Timed out after (?P<limit>\d+) seconds waiting for clients\. (?P<came>\d+)/(?P<world>\d+) clients joined",
            fix="ranks",
        ),
        wait(
            r"RendezvousTimeoutError",
            "Fewer nodes joined than --nnodes asks for within the join time-out of 600 s. torchrun doesn't say which.",
            fix="nodes",
            weight=1,
        ),
    ),
)

WORLD_MISMATCH = Diagnosis(
    code="log-world-mismatch",
    title="a rank never told its address",
    symptoms=("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",),
    explanation="Rank {missing} never wrote its address: it was not started, or RANK and WORLD_SIZE are not what the"
    " others have.",
    fixes={
        "missing": FixCommand(
            "echo $RANK $WORLD_SIZE    # where each rank starts: every number from 0 once, and one world size\n"
            "ps -ef | grep RANK    # on the node of rank {missing}; does it live, and what did it say last?"
        ),
        "twice": FixCommand(
            "echo $RANK $WORLD_SIZE    # where each rank starts: every number from 0 once, and one world size"
        ),
    },
    patterns=(
        wait(
            r"wait timeout after (?P<limit>\d+)ms, keys: /?(?P<key>\S*//cpu//\d+/(?P<missing>\d+))",
            fix="missing",
            weight=3,
        ),
        cause(
            r"Bootstrap Root ?: rank (?P<rank>\d+) of (?P<world>\d+) ranks has already checked in"
            r"|Bootstrap Root ?: mismatch in (?:info|rank count) from procs",
            "Two processes came with the same rank, or with another world size than the rest.",
            fix="twice",
        ),
    ),
)

RANK0_LATE = Diagnosis(
    code="log-rank0-late",
    title="a rank never came to the first collective",
    symptoms=(
        "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'",
    ),
    explanation="Rank {missing} never came to the first collective: it died before, it still loads or tokenizes, or"
    " it is in another branch of the code.",
    fixes="py-spy dump --pid PID    # of rank {missing}, while it hangs: where is it?\n"
    "grep -nF rank{missing}']' LOG | head    # what did it say first?",
    # `retreiving` up to 2.1.
    patterns=wait(
        r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<missing>\d+)\] via c10d key-value store.*"
        r"got error: (?:wait timeout|Timeout waiting|Socket Timeout)"
    ),
)

STORE_WAIT = Diagnosis(
    code="log-store-wait",
    title="a rank waited for what another one should have written",
    symptoms=("DistStoreError: wait timeout after 300000ms",),
    explanation="A rank waited for what another one should have written into the store: that one died or came late.",
    fixes="py-spy dump --pid PID    # of a rank that said nothing, while it hangs\n"
    "aboard why --log LOGS…    # with the logs of all nodes: the one that died first is named",
    patterns=wait(
        r"DistStoreError: (?:wait timeout|Socket Timeout)|Timeout waiting for key: (?P<key>\S+)"
        r"|wait timeout after (?P<limit>\d+)ms, keys: (?P<keys>\S+)",
        weight=1,
    ),
)

COLLECTIVE_TIMEOUT = Diagnosis(
    code="log-collective-timeout",
    title="a collective came to no end",
    symptoms=("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=…",),
    explanation="The collective was not done within its time-out: a rank never came to it, or the network carried"
    " nothing.",
    fixes="export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1    # then start again: the flight"
    " recorder keeps who was where\n"
    "py-spy dump --pid PID    # of each rank, while it hangs: who is outside of the collective?",
    # The same sentence since 1.13; NumelIn and NumelOut from 2.1 on.
    patterns=wait(
        r"(?:Watchdog caught|caught) collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+),"
        r" OpType=(?P<op>\w+)",
        order=-2,
    ),
)

WATCHDOG_STUCK = Diagnosis(
    code="log-watchdog-stuck",
    title="torch's watchdog could not run",
    symptoms=("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",),
    explanation="torch's own watchdog could not run: a thread holds Python's lock (GIL) in a long call, or CUDA"
    " itself hangs.",
    fixes="py-spy dump --native --pid PID    # while it hangs: which thread holds the GIL?\n"
    "sudo dmesg -T | grep -i xid    # on {node}; a GPU that hangs says so here",
    patterns=wait(
        r"watchdog got stuck for (?P<limit>\d+) seconds|Heartbeat monitor timed out"
        r"|detected no heartbeat of its watchdog",
        weight=1,
    ),
)

PRIVATE_ADDRESS = Diagnosis(
    code="log-private-address",
    title="a peer told an address that only it has",
    symptoms=(
        "socketStartConnect: Connect to 172.17.0.2<43369> failed : Connection refused",
        "Connect to 169.254.20.10<43369> failed : Software caused connection abort",
    ),
    explanation="The peer told an address that only it has: link-local, or of a container's or virtual machine's own"
    " bridge. NCCL took the wrong interface there.",
    fixes="ip -br addr    # on each node; which interface has the address that the others reach?\n"
    "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0    # that one, on all nodes; container:"
    " --network=host",
    patterns=cause(
        r"[Cc]onnect to (?P<peer>169\.254\.[\d.]+|172\.17\.[\d.]+|192\.168\.122\.[\d.]+)<(?P<port>\d+)> (?:failed"
        r"|returned)"
    ),
)

SAME_GPU = Diagnosis(
    code="log-same-gpu",
    title="two ranks took one GPU",
    symptoms=(
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU",
    ),
    explanation="Two ranks took one GPU: the script never calls torch.cuda.set_device(LOCAL_RANK), or more ranks"
    " were started than there are GPUs.",
    fixes="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))    # in the script, before init_process_group\n"
    "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}; fewer GPUs than ranks?",
    # Up to 2.29, then in other words.
    patterns=cause(
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA device (?P<device>\w+)"
        r"|Multiple Ranks are using the same GPU"
    ),
)

NVLS = Diagnosis(
    code="log-nvls",
    title="NVLink SHARP can't be set up",
    symptoms=("Failed to bind NVLink SHARP (NVLS) Multicast memory of size",),
    explanation="The switches between the GPUs (NVSwitch) can't set up multicast: the fabric manager isn't well, or"
    " its memory is used up by another container.",
    fixes="export NCCL_NVLS_ENABLE=0    # goes on without it\n"
    "sudo systemctl restart nvidia-fabricmanager    # on {node}, when no GPU is in use",
    patterns=cause(
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory|NVLS multicast.*(?:failed|error)"
        r"|transport/nvls\.cc:\d+ NCCL WARN"
    ),
)


NCCL_ALGORITHM = Diagnosis(
    code="log-nccl-algorithm",
    title="NCCL is left no algorithm",
    symptoms=("NCCL WARN Error : no algorithm/protocol available",),
    explanation="NCCL_ALGO or NCCL_PROTO leave NCCL no way to do a collective.",
    fixes="unset NCCL_ALGO NCCL_PROTO    # where ranks start; NCCL chooses by itself",
    patterns=cause(r"no algorithm/protocol available"),
)

NCCL_INVALID = Diagnosis(
    code="log-nccl-invalid",
    title="NCCL was called in a way that it can't obey",
    symptoms=("ncclInvalidUsage: This usually reflects invalid usage",),
    explanation="NCCL was called in a way that it can't obey; its own warning above says which.",
    fixes="export NCCL_DEBUG=WARN    # then start again: the line before this one says why",
    patterns=cause(r"ncclInvalidArgument|ncclInvalidUsage", weight=1),
)

NCCL_SYSTEM = Diagnosis(
    code="log-nccl-system",
    title="a system call failed inside of NCCL",
    symptoms=("unhandled system error (run with NCCL_DEBUG=INFO for details)",),
    explanation="A system call failed inside of NCCL, and the log doesn't say which: with NCCL_DEBUG=INFO it would.",
    fixes="export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG\n"
    "aboard check --only network    # interfaces and firewalls are the usual reasons",
    patterns=cause(r"ncclSystemError|unhandled system error", weight=1),
)

NCCL_CUDA = Diagnosis(
    code="log-nccl-cuda",
    title="a CUDA call failed inside of NCCL",
    symptoms=("ncclUnhandledCudaError: Call to CUDA function failed.",),
    explanation="A CUDA call failed inside of NCCL.",
    fixes="sudo dmesg -T | grep -i xid    # on {node}; did a GPU fail?\n"
    "export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG",
    patterns=cause(r"ncclUnhandledCudaError|Cuda failure (?:\d+ )?'(?P<error>[^']+)'|NCCL WARN Cuda failure", weight=1),
)

NCCL_INTERNAL = Diagnosis(
    code="log-nccl-internal",
    title="NCCL met what it did not expect",
    symptoms=("ncclInternalError: Internal check failed.",),
    explanation="NCCL met what it did not expect: mostly libraries that don't fit each other, or a broken topology.",
    fixes="export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG\n"
    "aboard check --only software    # what differs between nodes",
    patterns=cause(r"ncclInternalError", weight=1),
)

MESH = Diagnosis(
    code="log-mesh",
    title="Gloo could not connect all ranks",
    symptoms=(
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    explanation="A rank could not connect to a peer, and Gloo doesn't say which: a node's own name is a loopback"
    " address, the wrong interface was taken, or a firewall is between.",
    fixes="getent hosts $(hostname)    # on each node; 127.0.1.1 must not be there\n"
    "export GLOO_SOCKET_IFNAME=eth0    # the interface that peers reach, on all nodes\n"
    "aboard check --only network    # tries every pair of nodes",
    # From 2.2 to 2.7 without a word of whom it could not reach.
    patterns=cause(r"Gloo connectFullMesh failed with", order=1, weight=2),
)

RECV_TIMEOUT = Diagnosis(
    code="log-recv-timeout",
    title="a peer sent nothing",
    symptoms=("Timed out waiting 1800000ms for recv operation to complete",),
    explanation="A peer sent nothing for the whole time-out, and Gloo doesn't say which. It is stopped or stuck"
    " outside of the collective, its link is down, or large packets vanish on the way (MTU).",
    fixes="ss -tnoi    # on {node}; a Send-Q that grows is the link; ping -M do -s 1472 PEER tells a wrong MTU\n"
    "ps -o pid,stat,wchan:20,cmd -C python    # on each node; T is stopped, D waits for a dead mount\n"
    "py-spy dump --pid PID    # of each rank: who is outside of the collective?",
    patterns=wait(r"Timed out waiting (?P<limit>\d+)ms for (?:recv|send) operation to complete", weight=1),
)
