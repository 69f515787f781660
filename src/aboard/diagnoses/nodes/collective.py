"""A job of torch.distributed over the nodes: it can't be held, fails, gives wrong sums, or is slow."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import FixCommand
from aboard.diagnoses.messages import NCCL_COMPLETION, cause, odd
from aboard.diagnoses.shared_fixes import SLOW_NIC

_TIMED_OUT = "The client socket has timed out after 600000ms while trying to connect to"

_TORCH = FixCommand("{command:shell}    # must print a version; else `pip install torch` there")
_AGAIN = "aboard check --only collective"

NO_RANK = Diagnosis(
    code="collective-no-rank",
    title="A node can't start a rank",
    symptoms=(
        "ImportError: libcudart.so.12: cannot open shared object file",
        "ModuleNotFoundError: No module named 'torch'",
        "Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    ),
    explanation="The node's own Python, after its `setup` lines, with its env and in its directory, can't import torch:"
    " a library is missing, a `setup` line fails, or the environment or the directory is another one. The other ranks"
    " would wait until they time out, and not know for whom.",
    remedy="`pip install --force-reinstall torch` repairs a broken installation; `python:` and `setup:` in aboard.yaml"
    " choose another environment. `aboard check --only software` compares the versions of all nodes.",
    fixes=_TORCH,
)

FAILED = Diagnosis(
    code="collective-failed",
    title="A collective fails with one node or over one link",
    symptoms=(
        _TIMED_OUT,
        "Gloo connectFullMesh failed with",
        "Connect timeout [none]",
        "Timed out waiting 5000ms for recv operation to complete",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE",
    ),
    explanation="A run would wait in its first collective for minutes, and end without a name. A firewall lets the"
    " rendezvous through and not the ports that the system chooses, packets of some size vanish, or the interface is a"
    " wrong one.",
    fixes="aboard check --only network    # here; tells dropped, refused and too large packets apart\n"
    "sudo iptables -S INPUT; sudo nft list ruleset    # on {where:shell}; peers need all ports from 1024 up\n"
    "ip -br address    # on {where:shell}; is {interface} the interface that peers shall use?",
)

WRONG = Diagnosis(
    code="collective-wrong",
    title="A collective gives wrong values",
    symptoms=("loss is NaN from the first step on", "loss differs between ranks"),
    explanation="Numbers that are known beforehand came out wrong, and so would gradients, without a word. Memory or an"
    " adapter flips bits, or a node has another version of torch or NCCL.",
    remedy="`aboard check --only software` compares torch and NCCL of all nodes. `sudo dmesg | grep -iE 'mce|ecc|xid'`"
    " and `nvidia-smi -q -d ECC` show errors of the hardware: leave that node out.",
    fixes={
        "torch": _TORCH,
        "hardware": FixCommand("sudo dmesg | grep -iE 'mce|ecc|edac|xid'    # on {where:shell}; is it the hardware?"),
    },
)

SLOW_NODE = Diagnosis(
    code="collective-slow-node",
    title="All links of a node are slow in a collective",
    severity=Severity.WARN,
    symptoms=("one slow node", "10x slower than expected", "step time is that of the slowest rank"),
    explanation="Each node exchanged data with the others through torch; with this one it took at least four times as"
    " long, twice, in two jobs. A link that negotiated a lower speed, a bad cable, the wrong network, or a busy"
    " machine. `aboard check --only network` measures the same links without torch.",
    fixes=SLOW_NIC,
)

SLOW_LINK = Diagnosis(
    code="collective-slow-link",
    title="One link is slow in a collective",
    severity=Severity.WARN,
    symptoms=("10x slower than expected", "slow between two nodes only"),
    explanation="Two nodes exchange data far slower with each other than with the rest: the path between them"
    " (`tracepath PEER`) is another one, or a part of it is bad.",
    fixes=SLOW_NIC,
)

ONCE = Diagnosis(
    code="collective-once",
    title="A collective failed, and then did not",
    severity=Severity.INFO,
    symptoms=("intermittent time-outs",),
    explanation="Neither smaller jobs nor the same one failed afterwards: a machine was busy for seconds, or a network"
    " loses packets now and then.",
    fixes=f"{_AGAIN}    # does it come back?",
)

NOT_HELD = Diagnosis(
    code="collective-not-held",
    title="No collective was held",
    severity=Severity.INFO,
    symptoms=("torch is not installed on n3: no collective was held",),
    explanation="A real job needs torch in the Python of every node. Where it is missing on one, there is nothing to"
    " hold; `--skip collective` leaves it out.",
    fixes=_TORCH,
)

PART = Diagnosis(
    code="collective-part",
    title="Not all nodes took part in the collective",
    severity=Severity.INFO,
    symptoms=("held on 16 of 64 nodes",),
    explanation="Nodes whose connections are known to fail are left out, since waiting for them tells nothing new. And"
    " where many nodes are one machine, as in a sandbox, importing torch on all of them would take minutes.",
    fixes=f"{_AGAIN}    # with all nodes, however long it takes",
)

UNKNOWN_COLLECTIVE = Diagnosis(
    code="unknown-collective",
    title="The collective came to no end",
    severity=Severity.WARN,
    symptoms=("the collective came to no end",),
    explanation="A node answered in a way that this version doesn't know.",
    fixes=f"{_AGAIN}    # if it stays, please open an issue with its --json",
)

SOCKETS = Diagnosis(
    code="collective-sockets",
    title="NCCL takes sockets although there is a fabric",
    severity=Severity.WARN,
    symptoms=(
        "NCCL INFO NET/IB : No device found.",
        "NCCL INFO Using network Socket",
        "NCCL INFO Failed to initialize NET plugin IB",
    ),
    explanation="Sockets carry a tenth of what the fabric does. Its ports are down or not visible to the rank's user or"
    " in its container (pass /dev/infiniband in), or NCCL_IB_DISABLE, NCCL_IB_HCA or NCCL_NET rule it out.",
    fixes="ibv_devinfo | grep -E 'hca_id|state'    # on {where:shell}; the rank's user must see ports\n"
    "env | grep -E '^NCCL_(IB|NET)'    # on {where:shell}; NCCL_IB_DISABLE and NCCL_NET rule it out",
    log_fix="ibstat    # on {where:shell}; State must be Active\n"
    "env | grep -E '^NCCL_(IB|NET)'    # on {where:shell}; NCCL_IB_DISABLE and NCCL_NET rule it out",
)

PLUGIN = Diagnosis(
    code="collective-plugin",
    title="NCCL can't find its network plugin",
    severity=Severity.WARN,
    symptoms=(
        "NCCL INFO NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal network plugin.",
        "NCCL WARN Error: network AWS Libfabric not found.",
    ),
    explanation="A plugin (aws-ofi-nccl, gIB, RDMA-SHARP) that NCCL_NET or NCCL_NET_PLUGIN asks for, or that the other"
    " nodes load, is not found here. NCCL goes on with what it has built in: on a cloud's own fabric that is TCP.",
    fixes="ldconfig -p | grep -E 'nccl-net|nccl_net'    # on {where:shell}; is it installed?\n"
    "env: {{LD_LIBRARY_PATH: DIRECTORY}}    # in aboard.yaml, with the directory that holds it",
    log_fix="ldconfig -p | grep nccl-net; echo $LD_LIBRARY_PATH    # on {node}, where ranks start",
    patterns=cause(
        r"Error: network (?P<plugin>.+?) not found|Failed to (?:find|initialize) (?:any )?(?:NET|network) plugin"
    ),
)

TOPOLOGY = Diagnosis(
    code="collective-topology",
    title="NCCL's topology file is missing or differs",
    severity=Severity.WARN,
    symptoms=("Could not open XML topology file", "NCCL_TOPO_FILE set by environment to"),
    explanation="In virtual machines a file tells NCCL which GPU is near which adapter. Without it, or with that of"
    " another machine type, GPUs use far adapters, and ranks that see different machines may not agree.",
    fixes="env | grep NCCL_TOPO_FILE    # on {where:shell}; then copy the right file there or unset it",
)

NO_GPUDIRECT = Diagnosis(
    code="collective-no-gpudirect",
    title="NCCL goes through the host's memory",
    severity=Severity.WARN,
    symptoms=("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",),
    explanation="Neither nvidia_peermem is loaded nor can driver and kernel share buffers by DMA-BUF, so data is copied"
    " twice, and large collectives lose up to half of their rate. Where the GPU shares the host's memory this is as it"
    " should be.",
    fixes="sudo modprobe nvidia_peermem    # on {where:shell}; or a driver and kernel with DMA-BUF",
    log_fix="sudo modprobe nvidia_peermem    # on {node}; or a driver and kernel with DMA-BUF",
    patterns=odd(
        r"NET/IB ?: GPU Direct RDMA (?:\(\w+\) )?[Dd]isabled for HCA \d+ '(?P<hca>[^']+)'",
        "Every byte takes a detour through the host's memory; large collectives lose up to half of their rate.",
    ),
)

FABRIC_ERRORS = Diagnosis(
    code="collective-fabric-errors",
    title="Work on the fabric ended with errors",
    severity=Severity.WARN,
    symptoms=("NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12",),
    explanation="A run ends with them. Status 12 is a peer that doesn't answer: a link that flaps, a port that is down,"
    " or a switch that drops. Status 4 is memory that may not be read, often PCIe ACS.",
    fixes={
        "": FixCommand("rdma link{counters:shell}    # on {node}; then its cable and port"),
        "link": FixCommand(
            "ibstat; rdma link    # on {node} and {peer}; State Active? then link_downed in its counters\n"
            "export NCCL_IB_TIMEOUT=22    # rides over a short flap of a link"
        ),
        "adapter": FixCommand("ibstat; sudo dmesg -T | grep -i mlx5    # on {node}; link, firmware or the card"),
    },
    patterns=(
        cause(
            NCCL_COMPLETION + r"(?:12|13)\b(?:.* hca (?P<hca>\S+))?",
            "The adapter sent again and again and got no answer: the link or the peer's port went down, the peer"
            " died, or the path is not connected.",
            fix="link",
            weight=2,
        ),
        cause(
            r"NET/IB ?: (?P<hca>[\w.-]+):\d+ async fatal event|ibv_post_(?:send|recv)\(\) failed with error",
            "The adapter itself reported an error, and its connections are gone.",
            fix="adapter",
        ),
    ),
)
