"""A test job of torch.distributed across the nodes: it can't run, fails, returns wrong values, or is slow."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import FixCommand
from aboard.diagnoses.messages import NCCL_COMPLETION, cause, odd
from aboard.diagnoses.shared_fixes import SLOW_NIC

_TIMED_OUT = "The client socket has timed out after 600000ms while trying to connect to"

_TORCH = FixCommand("{command:shell}    # must print a version; otherwise run `pip install torch` there")
_AGAIN = "aboard check --only collective"

NO_RANK = Diagnosis(
    code="collective-no-rank",
    title="a node can't start a rank",
    symptoms=(
        "ImportError: libcudart.so.12: cannot open shared object file",
        "ModuleNotFoundError: No module named 'torch'",
        "Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    ),
    explanation="On this node, Python can't import torch, even with the node's `setup` lines, env and directory: a"
    " library is missing, a `setup` line fails, or the environment or directory is the wrong one. The other ranks"
    " would wait until they time out, without knowing for which node.",
    remedy="`pip install --force-reinstall torch` repairs a broken installation; `python:` and `setup:` in aboard.yaml"
    " choose another environment. `aboard check --only software` compares the versions of all nodes.",
    fixes=_TORCH,
)

FAILED = Diagnosis(
    code="collective-failed",
    title="a collective fails on one node or one link",
    symptoms=(
        _TIMED_OUT,
        "Gloo connectFullMesh failed with",
        "Connect timeout [none]",
        "Timed out waiting 5000ms for recv operation to complete",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE",
    ),
    explanation="A run would wait in its first collective for minutes, then fail without naming a node. A firewall"
    " allows the rendezvous port but not the ephemeral ports, packets above some size are lost, or the interface is"
    " the wrong one.",
    fixes="aboard check --only network    # here; distinguishes dropped, refused and oversized packets\n"
    "sudo iptables -S INPUT; sudo nft list ruleset    # on {where:shell}; peers need all ports from 1024 up\n"
    "ip -br address    # on {where:shell}; is {interface} the interface that peers should use?",
)

WRONG = Diagnosis(
    code="collective-wrong",
    title="a collective returns wrong values",
    symptoms=("loss is NaN from the first step on", "loss differs between ranks"),
    explanation="A collective over known values returned wrong results; gradients would be wrong too, without any"
    " error. Memory or an adapter flips bits, or a node has a different version of torch or NCCL.",
    remedy="`aboard check --only software` compares torch and NCCL on all nodes. `sudo dmesg | grep -iE 'mce|ecc|xid'`"
    " and `nvidia-smi -q -d ECC` show hardware errors: exclude that node.",
    fixes={
        "torch": _TORCH,
        "hardware": FixCommand("sudo dmesg | grep -iE 'mce|ecc|edac|xid'    # on {where:shell}; shows hardware errors"),
    },
)

SLOW_NODE = Diagnosis(
    code="collective-slow-node",
    title="all links of a node are slow in collectives",
    severity=Severity.WARN,
    symptoms=("one slow node", "10x slower than expected", "step time is that of the slowest rank"),
    explanation="In two separate jobs, exchanging data with this node through torch took at least four times as long"
    " as with the others: a link that negotiated a lower speed, a bad cable, the wrong network, or a busy machine."
    " `aboard check --only network` measures the same links without torch.",
    fixes=SLOW_NIC,
)

SLOW_LINK = Diagnosis(
    code="collective-slow-link",
    title="one link is slow in collectives",
    severity=Severity.WARN,
    symptoms=("10x slower than expected", "slow between two nodes only"),
    explanation="Two nodes exchange data far slower with each other than with the rest: the path between them"
    " (`tracepath PEER`) is a different one, or part of it is faulty.",
    fixes=SLOW_NIC,
)

ONCE = Diagnosis(
    code="collective-once",
    title="a collective failed once, then succeeded",
    severity=Severity.INFO,
    symptoms=("intermittent timeouts",),
    explanation="Neither smaller jobs nor the same one failed afterwards: a machine was busy for seconds, or the"
    " network occasionally loses packets.",
    fixes=f"{_AGAIN}    # does it happen again?",
)

NOT_HELD = Diagnosis(
    code="collective-not-held",
    title="no collective was tested",
    severity=Severity.INFO,
    symptoms=("torch is not installed on n3: no collective was run",),
    explanation="The test job needs torch in every node's Python. If one node lacks it, no collective can be tested;"
    " `--skip collective` leaves this check out.",
    fixes=_TORCH,
)

PART = Diagnosis(
    code="collective-part",
    title="not all nodes took part in the collective test",
    severity=Severity.INFO,
    symptoms=("tested on 16 of 64 nodes",),
    explanation="Nodes whose connections are known to fail are left out, since waiting for them adds no information."
    " Where many nodes are one machine, as in a sandbox, importing torch on all of them would take minutes.",
    fixes=f"{_AGAIN}    # with all nodes, however long it takes",
)

UNKNOWN_COLLECTIVE = Diagnosis(
    code="unknown-collective",
    title="the collective test did not finish",
    severity=Severity.WARN,
    symptoms=("the collective test did not finish",),
    explanation="A node replied in a format that this version doesn't recognize.",
    fixes=f"{_AGAIN}    # if it happens again, please open an issue with its --json",
)

SOCKETS = Diagnosis(
    code="collective-sockets",
    title="NCCL uses TCP sockets although there is a fabric",
    severity=Severity.WARN,
    symptoms=(
        "NCCL INFO NET/IB : No device found.",
        "NCCL INFO Using network Socket",
        "NCCL INFO Failed to initialize NET plugin IB",
    ),
    explanation="TCP sockets carry a tenth of what the fabric does. Its ports are down, or invisible to the rank's"
    " user or in its container (pass /dev/infiniband in), or NCCL_IB_DISABLE, NCCL_IB_HCA or NCCL_NET exclude it.",
    fixes="ibv_devinfo | grep -E 'hca_id|state'    # on {where:shell}; the rank's user must see ports\n"
    "env | grep -E '^NCCL_(IB|NET)'    # on {where:shell}; NCCL_IB_DISABLE and NCCL_NET exclude it",
    log_fix="ibstat    # on {where:shell}; State must be Active\n"
    "env | grep -E '^NCCL_(IB|NET)'    # on {where:shell}; NCCL_IB_DISABLE and NCCL_NET exclude it",
)

PLUGIN = Diagnosis(
    code="collective-plugin",
    title="NCCL can't find its network plugin",
    severity=Severity.WARN,
    symptoms=(
        "NCCL INFO NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal network plugin.",
        "NCCL WARN Error: network AWS Libfabric not found.",
    ),
    explanation="A plugin (aws-ofi-nccl, gIB, RDMA-SHARP) that NCCL_NET or NCCL_NET_PLUGIN requests, or that the other"
    " nodes load, is not found here. NCCL falls back to its built-in transports: on a cloud's own fabric that is TCP.",
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
    explanation="In virtual machines a file tells NCCL which GPU is close to which adapter. Without it, or with that"
    " of another machine type, GPUs use distant adapters, and ranks that see different topologies may disagree.",
    fixes="env | grep NCCL_TOPO_FILE    # on {where:shell}; then copy the right file there or unset it",
)

NO_GPUDIRECT = Diagnosis(
    code="collective-no-gpudirect",
    title="NCCL copies through host memory",
    severity=Severity.WARN,
    symptoms=("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",),
    explanation="nvidia_peermem is not loaded, and the driver and kernel can't share buffers by DMA-BUF. Data is"
    " copied twice, and large collectives lose up to half of their bandwidth. Where the GPU shares the host's memory,"
    " this is expected.",
    fixes="sudo modprobe nvidia_peermem    # on {where:shell}; or a driver and kernel with DMA-BUF",
    log_fix="sudo modprobe nvidia_peermem    # on {node}; or a driver and kernel with DMA-BUF",
    patterns=odd(
        r"NET/IB ?: GPU Direct RDMA (?:\(\w+\) )?[Dd]isabled for HCA \d+ '(?P<hca>[^']+)'",
        "All traffic goes through host memory; large collectives lose up to half of their bandwidth.",
    ),
)

FABRIC_ERRORS = Diagnosis(
    code="collective-fabric-errors",
    title="RDMA operations failed with errors",
    severity=Severity.WARN,
    symptoms=("NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12",),
    explanation="Such errors end a run. Status 12 means that a peer does not respond: a flapping link, a port that is"
    " down, or a switch that drops packets. Status 4 means memory that may not be read, often because of PCIe ACS.",
    fixes={
        "": FixCommand("rdma link{counters:shell}    # on {node}; then check its cable and port"),
        "link": FixCommand(
            "ibstat; rdma link    # on {node} and {peer}; is State Active? Then check link_downed in its counters\n"
            "export NCCL_IB_TIMEOUT=22    # tolerates a short link flap"
        ),
        "adapter": FixCommand(
            "ibstat; sudo dmesg -T | grep -i mlx5    # on {node}; is it the link, the firmware or the adapter?"
        ),
    },
    patterns=(
        cause(
            NCCL_COMPLETION + r"(?:12|13)\b(?:.* hca (?P<hca>\S+))?",
            "The adapter retried and got no response: the link or the peer's port went down, the peer died, or the"
            " path is not connected.",
            fix="link",
            weight=2,
        ),
        cause(
            r"NET/IB ?: (?P<hca>[\w.-]+):\d+ async fatal event|ibv_post_(?:send|recv)\(\) failed with error",
            "The adapter itself reported an error, and its connections are lost.",
            fix="adapter",
        ),
    ),
)
