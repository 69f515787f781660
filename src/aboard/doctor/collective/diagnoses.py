"""A test job of torch.distributed across the nodes: it can't run, fails, returns wrong values, or is slow."""

from aboard.diagnoses.diagnosis import Diagnosis, remark, warning
from aboard.diagnoses.output_patterns import NCCL_COMPLETION, cause, odd
from aboard.diagnoses.shared_fixes import SLOW_NIC

_TIMED_OUT = "The client socket has timed out after 600000ms while trying to connect to"

_TORCH = "{command:shell}    # must print a version; otherwise run `pip install torch` there"
_AGAIN = "aboard check --only collective"

NO_RANK = Diagnosis(
    code="collective-no-rank",
    title="a node can't start a rank",
    symptoms=(
        "ImportError: libcudart.so.12: cannot open shared object file",
        "ModuleNotFoundError: No module named 'torch'",
        "Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    ),
    explanation="On this node, Python can't import torch, even with the node's `setup:`, `env:` and `workdir:`. A"
    " library may be missing, a `setup` line may fail, or the Python environment or the working directory may be wrong."
    " The other ranks would wait until they time out, without saying which node they are waiting for.",
    remedy="`pip install --force-reinstall torch` repairs a broken installation. `python:` and `setup:` in aboard.yaml"
    " select a different environment. `aboard check --only software` compares the versions on all nodes.",
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
    explanation="A run would wait in its first collective for minutes, then fail without saying which node is at"
    " fault. Possible causes: a firewall allows the rendezvous port but not the ephemeral ports, packets above some"
    " size are lost, or the ranks use the wrong interface.",
    fixes="aboard check --only network    # here; shows whether packets are dropped, refused or too large\n"
    "sudo iptables -S INPUT; sudo nft list ruleset    # on {where:shell}; peers must reach all ports from 1024 up\n"
    "ip -br address    # on {where:shell}; is {interface} the interface that peers should use?",
)

WRONG = Diagnosis(
    code="collective-wrong",
    title="a collective returns wrong values",
    symptoms=("loss is NaN from the first step on", "loss differs between ranks"),
    explanation="A test collective over known values returned wrong results. In a run, gradients would be wrong too,"
    " without any error. Memory or an adapter may be flipping bits, or a node may have a different version of torch or"
    " NCCL.",
    remedy="`aboard check --only software` compares torch and NCCL on all nodes. `sudo dmesg | grep -iE 'mce|ecc|xid'`"
    " and `nvidia-smi -q -d ECC` show hardware errors; exclude a node that has any.",
    fixes={
        "torch": _TORCH,
        "hardware": "sudo dmesg | grep -iE 'mce|ecc|edac|xid'    # on {where:shell}; shows hardware errors",
    },
)

SLOW_NODE = warning(
    code="collective-slow-node",
    title="all links of a node are slow in collectives",
    symptoms=("one slow node", "10x slower than expected", "every step takes as long as the slowest rank"),
    explanation="In two separate test jobs, exchanging data with this node through torch took at least four times as"
    " long as with the other nodes. This node's link may have negotiated a lower speed, a cable may be bad, the traffic"
    " may use the wrong network, or the machine may be busy. `aboard check --only network` measures the same links"
    " without torch.",
    fixes=SLOW_NIC,
)

SLOW_LINK = warning(
    code="collective-slow-link",
    title="one link is slow in collectives",
    symptoms=("10x slower than expected", "slow between two nodes only"),
    explanation="Two nodes exchange data far more slowly with each other than with the other nodes. Their network path"
    " (`tracepath PEER` shows it) may differ from the other nodes' paths, or part of it may be faulty.",
    fixes=SLOW_NIC,
)

ONCE = remark(
    code="collective-once",
    title="a collective failed once, then succeeded",
    symptoms=("intermittent timeouts",),
    explanation="The same test job succeeded when it was repeated, and so did smaller jobs. A node may have been"
    " briefly overloaded, or the network may occasionally drop packets.",
    fixes=f"{_AGAIN}    # does it happen again?",
)

NOT_HELD = remark(
    code="collective-not-held",
    title="no collective was tested",
    symptoms=("torch is not installed on n3, so no collective was run",),
    explanation="The test job needs torch in every node's Python. If one node lacks it, no collective can be tested."
    " `--skip collective` skips this check.",
    fixes=_TORCH,
)

PART = remark(
    code="collective-part",
    title="not all nodes took part in the collective test",
    symptoms=("tested on 16 of 64 nodes",),
    explanation="Nodes whose connections are known to fail are left out, since waiting for them adds no information."
    " If many nodes are on one machine, as in a sandbox, only some of them take part: importing torch on all of them"
    " would take minutes.",
    fixes=f"{_AGAIN}    # with all nodes, however long it takes",
)

UNKNOWN_COLLECTIVE = warning(
    code="unknown-collective",
    title="the collective test did not finish",
    symptoms=("the collective test did not finish",),
    explanation="A node replied in a format that this version of Aboard doesn't recognize.",
    fixes=f"{_AGAIN}    # if it happens again, please open an issue with the output of --json",
)

SOCKETS = warning(
    code="collective-sockets",
    title="NCCL uses TCP sockets although the node has an RDMA fabric",
    symptoms=(
        "NCCL INFO NET/IB : No device found.",
        "NCCL INFO Using network Socket",
        "NCCL INFO Failed to initialize NET plugin IB",
    ),
    explanation="TCP sockets have about a tenth of the fabric's bandwidth. The fabric's ports may be down, they may be"
    " invisible to the user that runs the ranks or inside the container (pass /dev/infiniband to it), or"
    " NCCL_IB_DISABLE, NCCL_IB_HCA or NCCL_NET may exclude them.",
    fixes="ibv_devinfo | grep -E 'hca_id|state'    # on {where:shell}; the ranks' user must see the ports\n"
    "env | grep -E '^NCCL_(IB|NET)'    # on {where:shell}; NCCL_IB_DISABLE and NCCL_NET can exclude the fabric",
    log_fix="ibstat    # on {where:shell}; State must be Active\n"
    "env | grep -E '^NCCL_(IB|NET)'    # on {where:shell}; NCCL_IB_DISABLE and NCCL_NET can exclude the fabric",
)

PLUGIN = warning(
    code="collective-plugin",
    title="NCCL can't find its network plugin",
    symptoms=(
        "NCCL INFO NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal network plugin.",
        "NCCL WARN Error: network AWS Libfabric not found.",
    ),
    explanation="NCCL can't find a plugin (aws-ofi-nccl, gIB, RDMA-SHARP) that NCCL_NET or NCCL_NET_PLUGIN requests, or"
    " that the other nodes load. NCCL falls back to its built-in transports; on a cloud provider's own fabric, this"
    " means TCP.",
    fixes="ldconfig -p | grep -E 'nccl-net|nccl_net'    # on {where:shell}; is the plugin installed?\n"
    "env: {{LD_LIBRARY_PATH: DIRECTORY}}    # in aboard.yaml, with the directory that contains the plugin",
    log_fix="ldconfig -p | grep nccl-net; echo $LD_LIBRARY_PATH    # on {node}, where ranks start",
    patterns=cause(
        r"Error: network (?P<plugin>.+?) not found|Failed to (?:find|initialize) (?:any )?(?:NET|network) plugin"
    ),
)

TOPOLOGY = warning(
    code="collective-topology",
    title="NCCL's topology file is missing or differs between nodes",
    symptoms=("Could not open XML topology file", "NCCL_TOPO_FILE set by environment to"),
    explanation="On virtual machines, a topology file tells NCCL which GPU is close to which adapter. If the file is"
    " missing or was made for a different machine type, GPUs use distant adapters; if it differs between nodes, ranks"
    " may choose incompatible paths.",
    fixes="env | grep NCCL_TOPO_FILE    # on {where:shell}; then copy the right file there, or unset the variable",
)

NO_GPUDIRECT = warning(
    code="collective-no-gpudirect",
    title="NCCL copies GPU data through host memory",
    symptoms=("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",),
    explanation="The nvidia_peermem module is not loaded, and the driver and kernel can't share buffers through"
    " DMA-BUF. Data is copied twice, and large collectives lose up to half of their bandwidth. If the GPU shares the"
    " host's memory, this is expected.",
    fixes="sudo modprobe nvidia_peermem    # on {where:shell}; or install a driver and kernel with DMA-BUF",
    log_fix="sudo modprobe nvidia_peermem    # on {node}; or install a driver and kernel with DMA-BUF",
    patterns=odd(
        r"NET/IB ?: GPU Direct RDMA (?:\(\w+\) )?[Dd]isabled for HCA \d+ '(?P<hca>[^']+)'",
        "All traffic goes through host memory; large collectives lose up to half of their bandwidth.",
    ),
)

FABRIC_ERRORS = warning(
    code="collective-fabric-errors",
    title="RDMA operations failed with errors",
    symptoms=("NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12",),
    explanation="RDMA errors end a run. Status 12 means that a peer does not respond: usually a link is flapping, a"
    " port is down, or a switch drops packets. Status 4 means that the adapter is not allowed to read some memory,"
    " often because of PCIe ACS.",
    fixes={
        "": "rdma link{counters:shell}    # on {node}; then check the adapter's cable and port",
        "link": "ibstat; rdma link    # on {node} and {peer}; is State Active? Then check link_downed in the port's"
        " counters\n"
        "show_gids    # RoCE: on both; NCCL_IB_GID_INDEX must be RoCE v2 with IPv4\n"
        "ib_write_bw -d DEVICE {peer}    # on {node}; the server is: ib_write_bw -d DEVICE on {peer}\n"
        "export NCCL_IB_TIMEOUT=22    # tolerates a short link flap",
        "adapter": "ibstat; sudo dmesg -T | grep -i mlx5    # on {node}; is it the link, the firmware or the adapter?",
    },
    patterns=(
        cause(
            NCCL_COMPLETION + r"(?:12|13)\b(?:.* hca (?P<hca>\S+))?",
            "The adapter retried and got no response. The link or the peer's port may have gone down, the peer may"
            " have died, or the two adapters can't reach each other: on RoCE usually a wrong GID index, no route, or"
            " packets that the switches drop (PFC off).",
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
