"""Log messages about the rendezvous and collectives, from torch's store and watchdog, NCCL and Gloo.

They cover torch 1.13 to 2.13 and NCCL 2.14 to 2.30.
"""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.output_patterns import cause, hint, wait

_STORE_PEER = r"\(?\[?(?P<peer>[\w.:-]+?)\]?[,:] ?(?P<port>\d+)\)?"

STORE_UNREACHABLE = Diagnosis(
    code="log-store-unreachable",
    title="rank 0's store can't be reached",
    symptoms=(
        "The client socket has timed out after 600000ms while trying to connect to (n1, 29500).",
        "The connection to the C10d store has failed. See inner exception for details.",
    ),
    explanation="torch prints the same message for three causes: nothing is listening at the address (rank 0 has not"
    " started, or runs on a node with a different address), a firewall drops the packets, or this node can't resolve"
    " the name.",
    fixes={
        "peer": "getent hosts {peer}    # on the node that waits; no output means that it can't resolve the name\n"
        "timeout 3 bash -c '</dev/tcp/$0/$1' {peer} {port}; echo $?    # there: 0=open, 1=refused, 124=dropped\n"
        "ss -ltn | grep {port}    # on {peer}; is rank 0 listening?",
        "master": "getent hosts $MASTER_ADDR    # on the node that waits\n"
        "timeout 3 bash -c '</dev/tcp/ADDRESS/PORT'; echo $?    # there: 0=open, 1=refused, 124=dropped",
        "endpoint": "ss -ltn | grep 29500    # on the node of --rdzv-endpoint; is torchrun listening?\n"
        "getent hosts ENDPOINT; hostname -I    # there: is the endpoint one of its own addresses?",
    },
    patterns=(
        # One message for a refused connection, a dropped one and an unknown name; up to 2.2 without the milliseconds.
        wait(r"client socket has timed out after (?P<limit>\S+) while trying to connect to " + _STORE_PEER, fix="peer"),
        wait(r"client socket has failed to connect to any network address of " + _STORE_PEER, fix="peer"),
        # Up to 1.10.
        wait(r"connect\(\) timed out\. Original timeout was (?P<limit>\d+) ms", fix="master"),
        wait(
            r"RendezvousConnectionError: The connection to the C10d store has failed",
            "The rendezvous endpoint did not respond. Possible causes: it has not started, a firewall blocks it, or no"
            " node recognizes the endpoint's name as its own, so that no node hosts the store.",
            fix="endpoint",
            weight=1,
        ),
    ),
)

CLIENTS_MISSING = Diagnosis(
    code="log-clients-missing",
    title="not all ranks joined the rendezvous",
    symptoms=(
        "Timed out after 301 seconds waiting for clients. 6/8 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    explanation="{came} of {world} ranks joined. The other ranks never started, can't reach rank 0, or have a"
    " different world size; torch doesn't say which.",
    fixes={
        "ranks": "grep -L 'Init\\|loss\\|rank' LOGS…    # lists logs that are empty or end early: look for the cause"
        " there\n"
        "echo $RANK $WORLD_SIZE $MASTER_ADDR    # where ranks start: each RANK once, the other two the same",
        "nodes": "ps -ef | grep torchrun    # on each node; is it running, with the same --rdzv-id and"
        " --rdzv-endpoint?\n"
        "chronyc tracking    # on each node; with clocks more than 15 s apart, torchrun considers nodes dead",
    },
    patterns=(
        wait(
            r"Timed out after (?P<limit>\d+) seconds waiting for clients\. (?P<came>\d+)/(?P<world>\d+) clients joined",
            fix="ranks",
        ),
        wait(
            r"RendezvousTimeoutError",
            "Fewer nodes than --nnodes requires joined within the 600 s join timeout. torchrun doesn't say which nodes"
            " are missing.",
            fix="nodes",
            weight=1,
        ),
    ),
)

WORLD_MISMATCH = Diagnosis(
    code="log-world-mismatch",
    title="a rank never published its address",
    symptoms=("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",),
    explanation="Rank {missing} was not started, or its RANK and WORLD_SIZE don't match the other ranks' values. The"
    " ranks that waited for its address timed out.",
    fixes={
        "missing": "echo $RANK $WORLD_SIZE    # where each rank starts: each RANK (from 0) once, the same WORLD_SIZE\n"
        "ps -ef | grep RANK    # on rank {missing}'s node; is the rank running, and what did it log last?",
        "twice": "echo $RANK $WORLD_SIZE    # where each rank starts: each RANK (from 0) once, the same WORLD_SIZE",
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
            "Two processes joined with the same rank, or a process joined with a different world size than the rest.",
            fix="twice",
        ),
    ),
)

RANK0_LATE = Diagnosis(
    code="log-rank0-late",
    title="a rank never reached the first collective",
    symptoms=(
        "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'",
    ),
    explanation="Rank {missing} died earlier, is still loading or tokenizing its data, or is in a different branch of"
    " the code. The ranks that waited for it timed out.",
    fixes="py-spy dump --pid PID    # of rank {missing}, while the run hangs: shows where the rank is\n"
    "grep -nF rank{missing}']' LOG | head    # the rank's first output",
    # `retreiving` up to 2.1.
    patterns=wait(
        r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<missing>\d+)\] via c10d key-value store.*"
        r"got error: (?:wait timeout|Timeout waiting|Socket Timeout)"
    ),
)

STORE_WAIT = Diagnosis(
    code="log-store-wait",
    title="a rank waited for a store key that another rank never wrote",
    symptoms=("DistStoreError: wait timeout after 300000ms",),
    explanation="The rank that should have written the key to rank 0's store died or was late.",
    fixes="py-spy dump --pid PID    # of a rank that logged nothing, while the run hangs\n"
    "aboard why --log LOGS…    # with the logs of all nodes: shows which rank died first",
    patterns=wait(
        r"DistStoreError: (?:wait timeout|Socket Timeout)|Timeout waiting for key: (?P<key>\S+)"
        r"|wait timeout after (?P<limit>\d+)ms, keys: (?P<keys>\S+)",
        weight=1,
    ),
)

COLLECTIVE_TIMEOUT = Diagnosis(
    code="log-collective-timeout",
    title="a collective timed out",
    symptoms=("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=…",),
    explanation="The collective did not complete within its timeout. Usually a rank never reached it, or no data got"
    " through the network.",
    fixes={
        "": "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1    # then rerun: the flight recorder"
        " records which collective each rank reached\n"
        "py-spy dump --pid PID    # of each rank, while the run hangs: shows which one is outside the collective",
        "dumps": "aboard why --log DUMPS…    # with the dumps of all ranks: shows which rank is behind",
        "network": "aboard check --only network,fabric    # with all nodes of the run\n"
        "sudo dmesg -T | grep -i xid    # on each node; did a GPU fail?",
    },
    # The same message since 1.13; NumelIn and NumelOut from 2.1 on.
    patterns=wait(
        r"(?:Watchdog caught|caught) collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+),"
        r" OpType=(?P<op>\w+)|Watchdog caught collective operati",
        precedence=390,
    ),
)

FLUSHED = Diagnosis(
    code="log-rdma-flushed",
    title="an RDMA connection had failed before",
    symptoms=("Got completion from peer 10.0.0.3<4791> with error 5, opcode 0, len 0, vendor err 249",),
    explanation="Error 5 (flush) is a consequence: the adapter drops what is queued on a connection that is already"
    " broken. The other end's log has the first error: its process died, or its adapter could not reach the memory"
    " (GPUDirect RDMA: nvidia-peermem, ACS, IOMMU).",
    fixes="aboard why --log LOGS…    # with the logs of all nodes: the first error that is not 5\n"
    "export NCCL_NET_GDR_LEVEL=LOC    # then rerun, without GPUDirect RDMA: if that works, GPUDirect is the cause",
)

RENDEZVOUS_LOST = Diagnosis(
    code="log-rendezvous-lost",
    title="the node that hosts torchrun's rendezvous store is lost",
    symptoms=("has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of type",),
    explanation="The rendezvous store can't be reached any more: the node that hosts it, another node than this one,"
    " crashed or was rebooted, or its torchrun ended. This node only waits.",
    fixes="ps -ef | grep torchrun    # on the node of --rdzv-endpoint; is it up, and is torchrun running?\n"
    "aboard why --log LOGS…    # with that node's log: shows why it ended",
)

SEPARATE_WORLDS = Diagnosis(
    code="log-separate-worlds",
    title="each process runs alone, as rank 0 of a world of one",
    symptoms=("#   Rank  0 Pid   1320 on gpu01 device  0",),
    explanation="Several processes say that they are rank 0. They are separate runs with a world size of 1 that don't"
    " communicate: the program was built without MPI, or was started by another MPI or launcher than it was built for.",
    fixes="make MPI=1 MPI_HOME=/usr/lib/x86_64-linux-gnu/openmpi    # nccl-tests: build it with MPI\n"
    "srun --mpi=list    # and start it by the same MPI: mpirun, or srun --mpi=pmix",
    patterns=hint(r"#\s+Rank\s+0 (?:Group\s+\d+ )?Pid\s+(?P<pid>\d+) on\s+(?P<node>\S+) device"),
)

WATCHDOG_STUCK = Diagnosis(
    code="log-watchdog-stuck",
    title="torch's watchdog was stuck",
    symptoms=("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",),
    explanation="The watchdog's thread could not run. Usually another thread holds Python's lock (GIL) in a long call,"
    " or CUDA itself hangs.",
    fixes="py-spy dump --native --pid PID    # while the run hangs: which thread holds the GIL?\n"
    "sudo dmesg -T | grep -i xid    # on {node}; a GPU that hangs is logged here",
    patterns=wait(
        r"watchdog got stuck for (?P<limit>\d+) seconds|Heartbeat monitor timed out"
        r"|detected no heartbeat of its watchdog",
        weight=1,
    ),
)

PRIVATE_ADDRESS = Diagnosis(
    code="log-private-address",
    title="a peer announced an address that other nodes can't reach",
    symptoms=(
        "socketStartConnect: Connect to 172.17.0.2<43369> failed : Connection refused",
        "Connect to 169.254.20.10<43369> failed : Software caused connection abort",
    ),
    explanation="NCCL chose the wrong interface on the peer: the peer announced an address that is link-local, or that"
    " belongs to the internal bridge of a container or virtual machine. Other nodes can't connect to it.",
    fixes="ip -br addr    # on each node; which interface has the address that the others reach?\n"
    "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0    # use that interface, on all nodes;"
    " in a container: --network=host",
    patterns=cause(
        r"[Cc]onnect to (?P<peer>169\.254\.[\d.]+|172\.17\.[\d.]+|192\.168\.122\.[\d.]+)<(?P<port>\d+)> (?:failed"
        r"|returned)"
    ),
)

SAME_GPU = Diagnosis(
    code="log-same-gpu",
    title="two ranks use the same GPU",
    symptoms=(
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU",
    ),
    explanation="By default, NCCL requires a separate GPU for each rank. Either the script never calls"
    " torch.cuda.set_device(LOCAL_RANK), or more ranks were started than there are GPUs.",
    fixes="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))    # in the script, before init_process_group\n"
    "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}; are there fewer GPUs than ranks?",
    # Up to 2.29; later versions word it differently.
    patterns=cause(
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA device (?P<device>\w+)"
        r"|Multiple Ranks are using the same GPU"
    ),
)

NVLS = Diagnosis(
    code="log-nvls",
    title="NVLink SHARP can't be set up",
    symptoms=("Failed to bind NVLink SHARP (NVLS) Multicast memory of size",),
    explanation="The switches between the GPUs (NVSwitch) can't set up multicast. Usually Fabric Manager was stopped or"
    " restarted without a reset of the GPUs, which are then no longer registered with it; or another container has used"
    " up the multicast memory.",
    fixes="export NCCL_NVLS_ENABLE=0    # runs without NVLink SHARP\n"
    "sudo systemctl stop nvidia-fabricmanager; sudo nvidia-smi -r; sudo systemctl start nvidia-fabricmanager    # on"
    " {node}, with no process on its GPUs: the GPU reset in between is what a plain restart lacks; or reboot",
    patterns=cause(
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory|NVLS multicast.*(?:failed|error)"
        r"|transport/nvls\.cc:\d+ NCCL WARN"
    ),
)

RCCL = Diagnosis(
    code="log-rccl",
    title="RCCL can't connect the GPUs of a node",
    symptoms=("NCCL WARN hipIpcGetMemHandle failed : invalid argument", "NCCL WARN Failed to find reverse path from"),
    explanation="GPUs of this node can't read each other's memory. Usual causes: the IOMMU is not in passthrough mode,"
    " ranks run in containers of their own, or a virtual machine hides how its GPUs are connected.",
    fixes="grep -o 'iommu=[a-z]*' /proc/cmdline; rocm-smi --showtopo    # on {node}; iommu=pt is needed\n"
    "export NCCL_P2P_DISABLE=1    # then rerun: slower, but if it works, the access between GPUs is the cause",
    patterns=cause(r"hipIpc(?:Get|Open)MemHandle failed|Failed to find reverse path from"),
)

_SYMMETRIC = r"(?i:nvshmem)\S{0,300}:\d+: .{0,300}"
NVSHMEM = Diagnosis(
    code="log-nvshmem",
    title="NVSHMEM can't be initialized",
    symptoms=(
        "nvshmem/src/modules/transport/ibgda/ibgda.cpp:2966: non-zero status: 7 create DCT share err.",
        "nvshmem/src/host/init/init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed, exiting",
    ),
    explanation="NVSHMEM, which DeepEP uses between GPUs, failed while it set up its connections. Usual causes: an"
    " NVSHMEM of another version than the program was built with, or no access to the RDMA adapters.",
    fixes={
        "": "nvshmem-info -a    # on {node}, where ranks run: its version, and the transports that it has\n"
        "export NVSHMEM_DEBUG=INFO    # then rerun, for the first error of each rank",
        "device": "ls -l /dev/infiniband; ibv_devinfo | grep hca_id    # on {node}, where ranks run: are there mlx5"
        " adapters?\n"
        "grep PeerMappingOverride /proc/driver/nvidia/params    # on {node}; IBGDA needs PeerMappingOverride=1; for a"
        " container: --privileged",
        "gid": "show_gids    # on {node}; then set the index of RoCE v2 with IPv4\n"
        "export NVSHMEM_IB_GID_INDEX=3    # then rerun; NVSHMEM_HCA_LIST chooses the adapters",
        "bootstrap": "ip -br addr    # on each node; which interface reaches the others?\n"
        "export NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0    # that interface, on all nodes; then rerun",
    },
    patterns=(
        cause(
            _SYMMETRIC + r"(?:mlx5dv_devx|UAR\b|init failed for transport: IBGDA)|is not enumerated as an mlx5 device",
            "NVSHMEM's IBGDA can't open an adapter: the node has none of type mlx5, or the container or the driver's"
            " settings don't allow GPUs to access it.",
            fix="device",
        ),
        cause(
            r"^ibv_modify_qp failed\s*$|" + _SYMMETRIC + r"(?:Unable to create ah|modify_qp|connect EPS failed)",
            "NVSHMEM opened the adapter, but can't connect it to the other nodes: usually a wrong GID index (RoCE), or"
            " a port that is down.",
            fix="gid",
        ),
        cause(
            _SYMMETRIC + r"(?:Connection timed out|bootstrap_\w+ failed|Call to recv from \S+ failed|allgather of)",
            "NVSHMEM's processes can't reach each other over TCP, or one of them has died.",
            fix="bootstrap",
            precedence=380,
        ),
        cause(_SYMMETRIC + r"(?:non-zero status|NULL value|initialization failed)", weight=2, precedence=510),
    ),
)

NCCL_ALGORITHM = Diagnosis(
    code="log-nccl-algorithm",
    title="NCCL has no usable algorithm",
    symptoms=("NCCL WARN Error : no algorithm/protocol available",),
    explanation="The values of NCCL_ALGO or NCCL_PROTO exclude every way to run this collective.",
    fixes="unset NCCL_ALGO NCCL_PROTO    # where ranks start; NCCL then chooses",
    patterns=cause(r"no algorithm/protocol available"),
)

NCCL_INVALID = Diagnosis(
    code="log-nccl-invalid",
    title="NCCL was called in an invalid way",
    symptoms=("ncclInvalidUsage: This usually reflects invalid usage",),
    explanation="NCCL received an invalid argument, or was used in a way that it doesn't allow, for example by two"
    " ranks on one GPU. NCCL logs the reason as a warning.",
    fixes="export NCCL_DEBUG=WARN    # then rerun: NCCL's warning says why",
    patterns=cause(r"ncclInvalidArgument|ncclInvalidUsage", weight=1),
)

NCCL_SYSTEM = Diagnosis(
    code="log-nccl-system",
    title="a system call failed inside NCCL",
    symptoms=("unhandled system error (run with NCCL_DEBUG=INFO for details)",),
    explanation="The log doesn't say which system call failed; with NCCL_DEBUG=INFO it would. Interfaces and firewalls"
    " are the usual causes.",
    fixes="export NCCL_DEBUG=INFO    # then rerun, and: aboard why --log LOG\n"
    "aboard check --only network    # interfaces and firewalls are the usual causes",
    patterns=cause(r"ncclSystemError|unhandled system error", weight=1),
)

NCCL_CUDA = Diagnosis(
    code="log-nccl-cuda",
    title="a CUDA call failed inside NCCL",
    symptoms=("ncclUnhandledCudaError: Call to CUDA function failed.",),
    explanation="A CUDA function that NCCL called returned an error. A GPU may have failed, or this may be a delayed"
    " report of an earlier CUDA error in the program.",
    fixes="sudo dmesg -T | grep -i xid    # on {node}; did a GPU fail?\n"
    "export NCCL_DEBUG=INFO    # then rerun, and: aboard why --log LOG",
    patterns=cause(r"ncclUnhandledCudaError|Cuda failure (?:\d+ )?'(?P<error>[^']+)'|NCCL WARN Cuda failure", weight=1),
)

NCCL_INTERNAL = Diagnosis(
    code="log-nccl-internal",
    title="an internal check in NCCL failed",
    symptoms=("ncclInternalError: Internal check failed.",),
    explanation="Either NCCL has a bug, or its memory was corrupted. With NCCL_DEBUG=INFO, NCCL logs which internal"
    " check failed.",
    fixes="export NCCL_DEBUG=INFO    # then rerun, and: aboard why --log LOG\n"
    "aboard check --only software    # shows what differs between nodes",
    patterns=cause(r"ncclInternalError", weight=1),
)

MESH = Diagnosis(
    code="log-mesh",
    title="Gloo could not connect all ranks",
    symptoms=(
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    explanation="A rank could not connect to a peer, and Gloo doesn't say which. Possible causes: a node's hostname"
    " resolves to a loopback address, the wrong interface was chosen, or a firewall blocks the connection.",
    fixes="getent hosts $(hostname)    # on each node; must not print 127.0.1.1\n"
    "export GLOO_SOCKET_IFNAME=eth0    # the interface that peers reach, on all nodes\n"
    "aboard check --only network    # tests every pair of nodes",
    # 2.2 to 2.7 don't name the peer that could not be reached.
    patterns=cause(r"Gloo connectFullMesh failed with", precedence=600, weight=2),
)

RECV_TIMEOUT = Diagnosis(
    code="log-recv-timeout",
    title="a peer sent nothing",
    symptoms=("Timed out waiting 1800000ms for recv operation to complete",),
    explanation="A peer sent nothing until the timeout expired; Gloo doesn't say which peer. The peer may be stopped or"
    " stuck outside the collective, its link may be down, or large packets may be lost on the way (MTU).",
    fixes="ss -tnoi    # on {node}; a growing Send-Q points to the link; ping -M do -s 1472 PEER shows a wrong MTU\n"
    "ps -o pid,stat,wchan:20,cmd -C python    # on each node; T is stopped, D waits for a dead mount\n"
    "py-spy dump --pid PID    # of each rank: shows which one is outside the collective",
    patterns=wait(r"Timed out waiting (?P<limit>\d+)ms for (?:recv|send) operation to complete", weight=1),
)
