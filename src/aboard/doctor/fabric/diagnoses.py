"""InfiniBand and RoCE: adapters, links, rails, and NCCL's settings for them.

All are warnings at most: their rules were tested on recordings, not on real adapters.
"""

from dataclasses import replace

from aboard.diagnoses.diagnosis import warning
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.nodes.unanswered_probes import declare_unanswered
from aboard.diagnoses.output_patterns import NCCL_COMPLETION, cause, hint, odd

# Why a port is down: its Ethernet interface, the subnet manager, or its link.
_DOWN = {
    "ethernet": "rdma link show; ip -br link    # on {node}; bring the interface of {port} up, or reseat its cable",
    "no-manager": "sudo sminfo -C {device}    # on {node}; the cable is fine, but no subnet manager responds\n"
    "sudo systemctl restart opensm    # on the machine that runs it, unless a switch does",
    "no-link": "sudo mlxlink -d {device}    # on {node}; shows why there is no link\n"
    "sudo mlxlink -d {device} -a TG    # on {node}; toggles the link; then try another cable",
}
_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"

SOCKETS = warning(
    code="fabric-sockets",
    title="this node would train over TCP sockets instead of RDMA",
    symptoms=("NET/IB : No device found.", "Using network Socket", "NET/Socket : Using [0]eth0"),
    explanation="NCCL skips every adapter port that is not ACTIVE. If no port is left, NCCL logs at most `NET/IB : No"
    " device found.` and falls back to TCP. The run is then many times slower, or hangs if the other nodes use"
    " RDMA.",
    fixes={
        **_DOWN,
        "no-card": "lspci | grep -iE 'mellanox|infiniband'    # on {node}; is an adapter listed?\n"
        "sudo modprobe mlx5_ib    # on {node}; if so, loads its driver",
        "told": "env | grep NCCL_IB; cat /etc/nccl.conf    # on {node}; remove the setting that stops NCCL from using"
        " the node's adapters",
    },
    log_fix="ls -l /dev/infiniband    # on {node}, inside the container; Docker: --device=/dev/infiniband",
    patterns=odd(
        r"NET/IB ?: Unable to open device (?P<hca>[\w.-]+)",
        "The adapter exists but can't be used. Usually the container has no /dev/infiniband, or the user is not"
        " allowed to open it.",
    ),
)

PORT_DOWN = warning(
    code="fabric-port-down",
    title="an adapter's port is not ACTIVE",
    symptoms=("NET/IB : No device found.", "Port state: Down", "phys_state: Polling", "mlx5_3: port 1 DOWN"),
    explanation="Either the port has no link, usually because of a bad cable or transceiver or a disabled switch port,"
    " or no subnet manager has made the port ACTIVE. NCCL skips the port silently. This node then has less bandwidth"
    " than its peers, and all ranks wait for it.",
    fixes=_DOWN,
    patterns=hint(r"NET/IB ?: No device found", refines=()),
)

PORT_MISSING = warning(
    code="fabric-port-missing",
    title="a node has fewer RDMA ports than the others",
    symptoms=("Detected mixed local Net device counts across ranks", "mlx5_core: Cannot find PCI device"),
    explanation="An adapter may have fallen off the PCI bus, its firmware may not have started, or its driver may have"
    " failed. NCCL 2.30 rejects nodes with unequal numbers of adapters; with older versions, all nodes are slow.",
    fixes="lspci | grep -i mellanox; sudo dmesg | grep mlx5    # on {node}; is the adapter on the bus?\n"
    "sudo reboot    # on {node}; if it is still missing, exclude the node, or the adapter on all nodes (NCCL_IB_HCA)",
    log_fix="ibstat | grep -c Active    # on each node; check the cable and adapter of the node with the lower count",
    patterns=cause(
        r"Detected mixed local Net device counts across ranks", "A node has fewer active RDMA ports than the others."
    ),
)

RATE = warning(
    code="fabric-rate",
    title="a link runs below its rated speed",
    symptoms=("rate: 100 Gb/sec (1X NDR)", "200 Gb/sec (4X HDR)", "busbw is half of what it should be"),
    explanation="A link can come up with fewer lanes or at a lower speed because its cable is dirty, bent or"
    " rated for a lower speed, or because of old firmware (`ibv_devinfo | grep fw_ver`). A collective is only as fast"
    " as its slowest link, so all nodes wait for this link.",
    fixes="sudo mlxlink -d {device} -m    # on {node}; shows speed, lanes and cable health\n"
    "sudo mlxlink -d {device} -a TG    # on {node}; toggles the link; then try another cable",
)

FLAPS = warning(
    code="fabric-flaps",
    title="a link flaps or has many errors",
    symptoms=(
        "Got completion from peer with error 12, opcode 0, len 0, vendor err 129",
        "Got completion from peer with status=12 opcode=0",
        "transport retry counter exceeded",
    ),
    explanation="If a link flaps or a peer dies, the run fails with `error 12` or `status=12` (RETRY_EXC) when the"
    " retries run out. The kernel counts how often each link has gone down since boot.",
    fixes="sudo mlxlink -d {device} -m -c    # on {node}; reseat or replace the cable\n"
    "sudo perfquery -R -C {device}    # on {node}; resets the counters, then check again",
    log_fix="ibstat; cat /sys/class/infiniband/{hca}/ports/1/counters/link_downed    # on {node}\n"
    "export NCCL_IB_TIMEOUT=22    # tolerates a short link flap",
    patterns=odd(
        r"NET/IB ?: (?P<hca>[\w.-]+):\d+ Got (?:non-fatal )?async event ?: port (?:error|active)",
        "A fabric port went down and may have come back. The usual cause is a cable, a transceiver or the switch.",
    ),
)

GID_NONE = warning(
    code="fabric-gid-none",
    title="a RoCE port has no RoCE v2 address",
    symptoms=("ibv_modify_qp failed with 22 Invalid argument", "ibv_modify_qp failed with 110 Connection timed out"),
    explanation="A RoCE port's addresses (GIDs) come from its interface's IP addresses. If the interface has none, the"
    " port has only a link-local or RoCE v1 entry, which peers can't reach, and connecting fails with `ibv_modify_qp"
    " failed`.",
    fixes="ip -br addr    # on {node}; its RoCE interface needs an IP address, as on the other nodes\n"
    "sudo cma_roce_mode -d {device} -p {port} -m 2    # on {node}; enables RoCE v2 if the interface has an address;"
    " or exclude the port with NCCL_IB_HCA",
)

GID_INDEX = warning(
    code="fabric-gid-index",
    title="the RoCE v2 GID index differs from NCCL's setting or between nodes",
    symptoms=("ibv_modify_qp failed with 22 Invalid argument", "NCCL_IB_GID_INDEX set by environment to 3"),
    explanation="A VLAN, a second address or a restarted network service can shift a node's GID index. If"
    " NCCL_IB_GID_INDEX points to a RoCE v1 or empty entry, the run fails with `ibv_modify_qp failed with 22 Invalid"
    " argument`. NCCL 2.21 and later find the index themselves if the variable is not set.",
    fixes={
        "one": Advice(
            "NCCL_IB_GID_INDEX: {index}    # in `env:` of {node} in aboard.yaml; NCCL 2.21 and later find it if the"
            " variable is not set"
        ),
        "several": Advice(
            "NCCL_IB_GID_INDEX: '-1'    # in `env:` of {node} in aboard.yaml, or unset it, because the node's ports"
            " need different indexes"
        ),
    },
    log_fix="show_gids    # on {node}; take the index of the RoCE v2 row with an IPv4 address\n"
    "export NCCL_IB_GID_INDEX=3    # for example, if the index is 3; or unset it, because NCCL 2.21 and later find it",
    patterns=cause(
        r"[Cc]all to ibv_modify_qp failed with(?: error)?:? ?(?:22|Invalid argument|101|61|No data available"
        r"|Network is unreachable)|ibv_query_gid_index failed|ibv_modify_qp failed.*Invalid argument",
        "NCCL_IB_GID_INDEX is set to a GID index that this RoCE port doesn't have.",
    ),
)

MIXED = warning(
    code="fabric-mixed",
    title="InfiniBand and RoCE ports are mixed",
    symptoms=("Attempted to connect incompatible devices", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:1/RoCE"),
    explanation="NCCL uses all adapters for RDMA, but InfiniBand and RoCE can't communicate with each other, so the run"
    " fails with `Attempted to connect incompatible devices`. The adapter to exclude is usually an Ethernet"
    " adapter for the slow management network.",
    fixes={
        "mode": "sudo mlxconfig -d {device} query LINK_TYPE_P1    # on {node}; set it to 1 (InfiniBand) or 2"
        " (Ethernet)",
        "exclude": Advice("NCCL_IB_HCA: {adapters}    # in `env:` of {where} in aboard.yaml"),
    },
    log_fix="cat /sys/class/infiniband/*/ports/*/link_layer    # on {node} and its peers\n"
    "export NCCL_IB_HCA=^mlx5_bond_0    # for example, to exclude mlx5_bond_0; set it on all nodes",
    patterns=cause(
        r"Attempted to (?:connect|merge) incompatible devices|device is incompatible with the local \[",
        "One end is InfiniBand and the other is RoCE. Usually NCCL has mistaken a management port for part of the"
        " fabric.",
    ),
)

PLUGIN = warning(
    code="fabric-plugin",
    title="NCCL's network plugin is not found",
    symptoms=(
        "NET/Plugin: Could not find: libnccl-net.so",
        "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
        "NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so",
        "Using network Socket",
    ),
    explanation="Some adapters, such as Amazon's EFA, need a plugin that NCCL loads by name. NCCL could not find it:"
    " either it is not installed, or its directory is not in the ranks' LD_LIBRARY_PATH. NCCL logs at most"
    " `NET/Plugin: Could not find` and falls back to TCP. If no plugin is needed, set `NCCL_NET_PLUGIN: none` under"
    " `env:` in aboard.yaml.",
    fixes={
        "aside": Advice("setup: [{line}]    # for {node} in aboard.yaml"),
        "like": "ls -l {path}; dpkg -S {path}    # on {peer}, which has it; install the same package on {node}",
        "find": "find / -xdev -name 'libnccl-net*' 2>/dev/null    # on {node}; add its directory to LD_LIBRARY_PATH, or"
        " install the plugin (for EFA: aws-ofi-nccl)",
    },
)

RAIL_CUT = warning(
    code="fabric-rail-cut",
    title="two nodes can't reach each other on one rail",
    symptoms=("ibv_modify_qp failed with 110 Connection timed out", "Call to ibv_modify_qp failed with 110"),
    explanation="A rail is the network of one adapter per node. Connections on this rail fail after minutes with"
    " `failed with 110 Connection timed out`. Possible causes: a cable is in the wrong port, a VLAN is missing on the"
    " switch, or an address belongs to a different rail.",
    fixes={
        "echo": "ping -I {own} {peer}    # on {node}; then check the cable, switch port and VLAN at both ends",
        "without": Advice(
            "NCCL_IB_HCA: {adapters}    # in `env:` of aboard.yaml, for all nodes, to train without that rail"
        ),
    },
    log_fix="export NCCL_CROSS_NIC=0    # keeps traffic within each rail\n"
    "rping -c -a PEER -C 3 -v    # on {node}, to each address of the peer's adapters",
    patterns=cause(
        r"[Cc]all to ibv_modify_qp failed with(?: error)?:? ?(?:110|Connection timed out)",
        "Two adapters can't reach each other. The rails may not be connected, or a port may be in a different network.",
    ),
)

RAILS = warning(
    code="fabric-rails",
    title="rails are not connected to each other",
    symptoms=("ibv_modify_qp failed with 110 Connection timed out", "NCCL_CROSS_NIC set by environment to 1"),
    explanation="Many clusters keep the adapters' networks (rails) separate. An NCCL ring that crosses rails, which"
    " NCCL_CROSS_NIC=1 allows, then fails with `ibv_modify_qp failed with 110 Connection timed out`.",
    fixes=Advice("NCCL_CROSS_NIC: '0'    # in `env:` of aboard.yaml, for {where}; or set up a route between the rails"),
)

HCA_ABSENT = warning(
    code="fabric-hca-absent",
    title="NCCL_IB_HCA specifies an adapter that the node doesn't have",
    symptoms=("NCCL_IB_HCA set to mlx5_3", "NET/IB : No device found."),
    explanation="NCCL silently uses only the adapters that exist, so this node has less bandwidth, or none at all. The"
    " kernel numbers adapters as it finds them, so a list made for one node may not fit the next. A prefix (`mlx5`) or"
    " an exclusion (`^=mlx5_bond_0`) fits all nodes.",
    fixes=Advice(
        "NCCL_IB_HCA: {adapters}    # in `env:` of {node} in aboard.yaml; or find out why the adapter is missing"
    ),
)

NO_GPUDIRECT = warning(
    code="fabric-no-gpudirect",
    title="adapters can't read GPU memory directly",
    symptoms=("GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "NET/IB : GPU Direct RDMA Disabled"),
    explanation="Without the nvidia_peermem module, adapters can't read GPU memory, and all traffic goes through host"
    " memory, at about half the bandwidth. The module is not loaded, or was built for a different version of the"
    " adapter's driver; in that case, reinstall the GPU driver after the adapter's driver. NVIDIA's open driver on"
    " Linux 5.12 or later uses DMA-BUF instead.",
    fixes="sudo modprobe nvidia_peermem    # on {where:shell}\n"
    "echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia_peermem.conf    # there, to load it at every boot",
    log_fix="lsmod | grep nvidia_peermem    # on {node}; if missing: sudo modprobe nvidia_peermem\n"
    "export NCCL_NET_GDR_LEVEL=LOC    # uses host memory, which is slower",
    patterns=cause(
        r"[Cc]all to ibv_reg_(?:mr(?:_iova2)?|dmabuf_mr) failed(?: with error)?.*(?:Invalid argument|Bad address)",
        "The adapter can't register GPU memory, usually because the nvidia_peermem module is missing or doesn't match"
        " the driver.",
        precedence=600,
    ),
)

ACS = warning(
    code="fabric-acs",
    title="PCI switches route traffic between devices through the CPU",
    symptoms=("Got completion with error 4, opcode 32675, len 0, vendor err 81", "status=4", "LOC_PROT_ERR"),
    explanation="Access Control Services (ACS) send each packet between two PCI devices through the CPU, so GPUDirect"
    " is slow or fails with `status 4` (LOC_PROT_ERR). Only virtual machines need ACS; for them, keep ACS on and enable"
    " ATS in the adapter.",
    fixes="sudo setpci -s {bridge} ECAP_ACS+0x6.w=0000    # on {where:shell}; for each bridge, after every boot\n"
    "# for good: disable ACS or IO virtualization (VT-d, AMD-Vi) in the BIOS",
    log_fix="sudo lspci -vvv | grep ACSCtl    # on {node}; SrcValid+ on a bridge means that ACS is on; disable it, or"
    " use IOMMU passthrough\n"
    "export NCCL_NET_GDR_LEVEL=LOC    # then rerun, without GPUDirect RDMA: if that works, GPUDirect is the cause",
    patterns=cause(
        NCCL_COMPLETION + r"(?:4|10|11)\b(?:.* hca (?P<hca>\S+))?",
        "The adapter was refused the memory that NCCL had registered with it. For GPU memory (GPUDirect RDMA), PCI"
        " access control (ACS) or the IOMMU blocks it, or nvidia-peermem does not fit the driver.",
    ),
)

MEMLOCK = warning(
    code="fabric-memlock",
    title="the locked-memory limit is too low for RDMA",
    symptoms=(
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
        "Call to ibv_create_cq failed with error Cannot allocate memory",
    ),
    explanation="RDMA locks the memory that it registers with the adapter. Beyond the user's limit, locking fails with"
    " `Call to ibv_reg_mr failed with error Cannot allocate memory`. Ranks inherit the limit from sshd, slurmd or"
    " Docker (`--ulimit memlock=-1`), not from your terminal.",
    fixes={
        "setup": Advice("setup: [ulimit -l unlimited]    # in aboard.yaml, for {where}"),
        "limits": "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-memlock.conf    # on"
        " {where:shell}\n"
        "sudo systemctl restart ssh    # on {where:shell}; for Slurm: LimitMEMLOCK=infinity in slurmd's service",
    },
    log_fix="ulimit -l    # on {node}, in the shell that ranks get: must print unlimited\n"
    "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf    # on {node}; for Slurm and systemd:"
    " LimitMEMLOCK=infinity in the unit",
    patterns=cause(
        r"[Cc]all to ibv_(?:reg_mr(?:_iova2)?|reg_dmabuf_mr|create_cq"
        r"|create_qp) failed(?: with error)?.*(?:Cannot allocate memory|Bad address \(memlock|\b12\b)"
        # Before 2.18, NCCL gave no reason; this is the usual one.
        r"|[Cc]all to ibv_(?:reg_mr|create_cq) failed\s*$"
        # UCX.
        r"|ibv_(?:create_cq|create_qp|reg_mr)\(.{0,200}\) failed: Cannot allocate memory"
    ),
)

NCCL_SETTINGS = warning(
    code="fabric-nccl-settings",
    title="NCCL settings differ between nodes",
    symptoms=(
        "NCCL_ALGO set by environment to Ring",
        "Using network IB",
        "Using network Socket",
        "stuck at the first all-reduce",
    ),
    explanation="Each node reads its own NCCL variables and /etc/nccl.conf. Ranks that choose a different network,"
    " algorithm or protocol than their peers hang or are slow.",
    leads_to=("software-variable",),
    fixes={
        "look": "env | grep {key}; grep -n {key} /etc/nccl.conf    # on {where:shell}; where is it set?",
        "set": Advice("{key}: …    # in `env:` of aboard.yaml, once for all nodes; overrides the nodes' own settings"),
    },
)

TOPOLOGY = warning(
    code="fabric-topology",
    title="an NCCL topology file is missing or differs between nodes",
    symptoms=(
        "NCCL_TOPO_FILE set by environment to /etc/crusoe/nccl_topo/h100-80gb-sxm-ib.xml",
        "Could not open XML topology file",
    ),
    explanation="On virtual machines, NCCL can't detect which adapter is close to which GPU, so cloud providers ship a"
    " file that describes this. On a node without the file, NCCL picks slow paths, which costs half the bandwidth.",
    fixes={
        "copy": "scp {source} {target}    # or unset NCCL_TOPO_FILE",
        "copy-bind": "scp {source} {target}    # or unset NCCL_TOPO_FILE; bind it into the container too",
        "absent": "ls -l {path}    # on {node}; no node has it: install it or unset NCCL_TOPO_FILE",
        "absent-bind": "ls -l {path}    # on {node}; no node has it: install it or unset NCCL_TOPO_FILE; bind it into"
        " the"
        " container too",
        "other": f"ls -l {_TOPOLOGY}; echo $NCCL_TOPO_FILE    # on {{node}}",
        "unequal": f"md5sum {_TOPOLOGY} $NCCL_TOPO_FILE    # on each node",
    },
)


UNKNOWN_ACS = replace(
    declare_unanswered("acs"),
    fixes="sudo lspci -vvv | grep ACSCtl    # on {where:shell}; SrcValid+ means that ACS is on",
)
