"""NCCL's network: interfaces, sockets, InfiniBand, RoCE and plugins. Texts of NCCL 2.14 to 2.30."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, hint, odd

_PEER = r"(?P<peer>[\w.:-]+?)(?:\.ibnet)?<(?P<port>\d+)>"
_RANDOM = "NCCL connects on ports of the kernel's choice, not on the rendezvous port only."

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "network-interface-missing",
        r"[Bb]ootstrap ?: no socket interface found|NET/Socket ?: [Nn]o interface found"
        r"|no socket interface found|No usable listening interface found",
        "NCCL_SOCKET_IFNAME names an interface that this node doesn't have, or none has an address.",
        "ip -br addr    # on {node}; what is it called there?",
        "env | grep NCCL_SOCKET_IFNAME    # on {node}; =eth0 is exact, eth is a prefix, ^docker excludes",
        weight=3,
    ),
    cause(
        "log-private-address",
        r"[Cc]onnect to (?P<peer>169\.254\.[\d.]+|172\.17\.[\d.]+|192\.168\.122\.[\d.]+)<(?P<port>\d+)>"
        r" (?:failed|returned)",
        "The peer told an address that only it has: link-local, or of a container's or virtual machine's own bridge."
        " NCCL took the wrong interface there.",
        "ip -br addr    # on each node; which interface has the address that the others reach?",
        "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0    # that one, on all nodes; container: --network=host",
        weight=3,
    ),
    # socketStartConnect up to 2.23, socketPollConnect and `returned 113(No route to host)` in 2.21 to 2.23.
    cause(
        "network-ephemeral-rejected",
        rf"[Cc]onnect to {_PEER} (?:failed ?:|returned) ?(?:\d+\()?(?:No route to host|Network is unreachable)",
        f"{_RANDOM} A firewall between the two nodes says no.",
        "sudo iptables -S | grep -i reject    # on {peer}; firewalld: firewall-cmd --list-all",
        "aboard check --only network    # tries every pair of nodes",
        weight=3,
    ),
    cause(
        "network-ephemeral-refused",
        rf"[Cc]onnect to {_PEER} (?:failed ?:|returned) ?(?:\d+\()?(?:Connection refused"
        rf"|Software caused connection abort)",
        f"{_RANDOM} The peer told an address where nothing listens: another interface than peers reach, a container's"
        " own network, or it died before.",
        "ip -br addr    # on {peer}; set NCCL_SOCKET_IFNAME to the interface that all nodes share",
        "aboard check --only network    # tries every pair of nodes",
        weight=2,
    ),
    cause(
        "network-ephemeral-dropped",
        rf"[Cc]onnect to {_PEER} (?:failed ?:|returned) ?(?:\d+\()?(?:Connection timed out|Operation now in progress)"
        rf"|connect to {_PEER.replace('peer', 'peer2').replace('port', 'port2')}.*(?:exceeded|timed out)",
        f"{_RANDOM} Packets to the others vanish in a firewall.",
        "sudo iptables -S    # on {peer}; open all ports between the nodes",
        "aboard check --only network    # tries every pair of nodes",
        weight=3,
    ),
    # From 2.24 on each of 34 tries (NCCL_SOCKET_RETRY_CNT) is told; the last one is the end.
    cause(
        "network-ephemeral-rejected",
        r"connect (?:to \S+ )?returned No route to host, retrying \((?P<try>\d+)/(?P=try)\)",
        f"{_RANDOM} A firewall between the nodes says no.",
        "sudo iptables -S | grep -i reject    # on the peers of {node}",
        "aboard check --only network    # tries every pair of nodes",
        weight=3,
    ),
    cause(
        "network-ephemeral-dropped",
        r"connect (?:to \S+ )?returned Connection timed out, retrying \((?P<try>\d+)/(?P=try)\)",
        f"{_RANDOM} Packets to the others vanish in a firewall.",
        "ss -tno state syn-sent    # on {node}, while it tries: the address behind the arrow is blocked",
        "aboard check --only network    # tries every pair of nodes",
        weight=3,
    ),
    cause(
        "network-ephemeral-refused",
        r"connect (?:to \S+ )?returned Connection refused, retrying \((?P<try>\d+)/(?P=try)\)",
        f"{_RANDOM} The peer told an address where nothing listens, or died before.",
        "ip -br addr    # on the peers of {node}; set NCCL_SOCKET_IFNAME to the interface that all nodes share",
        weight=2,
    ),
    cause(
        "software-nccl",
        r"Mismatched NCCL version detected ?: rank (?P<rank>\d+) (?:has|version) (?P<one>\d+)"
        r" (?:but )?rank (?P<other>\d+) (?:has|version) (?P<two>\d+)"
        r"|Mismatched NCCL version detected|NCCL version mismatch"
        r"|unexpected address family 0|socket .*family 0",
        "Nodes load different versions of NCCL, and they can't talk to each other.",
        "python -c 'import torch; print(torch.cuda.nccl.version())'    # on each node, where ranks start",
        "echo $LD_LIBRARY_PATH $LD_PRELOAD    # there: a system libnccl that comes first is the usual reason",
        weight=3,
    ),
    cause(
        "fabric-memlock",
        r"[Cc]all to ibv_(?:reg_mr(?:_iova2)?|reg_dmabuf_mr|create_cq|create_qp) failed(?: with error)?.*"
        r"(?:Cannot allocate memory|Bad address \(memlock|\b12\b)",
        "RDMA locks memory, and ranks may lock too little (RLIMIT_MEMLOCK).",
        "ulimit -l    # on {node}, in the shell that ranks get: must say unlimited",
        "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf    # on {node}; for Slurm and"
        " systemd: LimitMEMLOCK=infinity in the unit",
        weight=3,
    ),
    cause(
        "fabric-no-gpudirect",
        r"[Cc]all to ibv_reg_(?:mr(?:_iova2)?|dmabuf_mr) failed(?: with error)?.*(?:Invalid argument|Bad address)",
        "The adapter can't register the GPU's memory: the module for it is missing, or doesn't fit the driver.",
        "lsmod | grep nvidia_peermem    # on {node}; sudo modprobe nvidia_peermem",
        "export NCCL_NET_GDR_LEVEL=LOC    # goes through the host's memory, slower",
        weight=3,
    ),
    # `with error 12` up to 2.18, `status=12` from 2.20, `status=IBV_WC_RETRY_EXC_ERR(12)` from 2.29.
    cause(
        "collective-fabric-errors",
        rf"Got completion from peer {_PEER}.*?(?:with error |status=)(?:\w+\()?(?:12|13)\b(?:.* hca (?P<hca>\S+))?",
        "The adapter sent again and again and got no answer: the link or the peer's port went down, the peer died, or"
        " the path is not connected.",
        "ibstat; rdma link    # on {node} and {peer}; State Active? then link_downed in its counters",
        "export NCCL_IB_TIMEOUT=22    # rides over a short flap of a link",
        weight=2,
    ),
    cause(
        "collective-fabric-errors",
        r"NET/IB ?: (?P<hca>[\w.-]+):\d+ async fatal event|ibv_post_(?:send|recv)\(\) failed with error",
        "The adapter itself reported an error, and its connections are gone.",
        "ibstat; sudo dmesg -T | grep -i mlx5    # on {node}; link, firmware or the card",
        weight=3,
    ),
    odd(
        "fabric-flaps",
        r"NET/IB ?: (?P<hca>[\w.-]+):\d+ Got (?:non-fatal )?async event ?: port (?:error|active)",
        "A port of the fabric went down, and maybe came back: a cable, a transceiver, or the switch.",
        "ibstat; cat /sys/class/infiniband/{hca}/ports/1/counters/link_downed    # on {node}",
    ),
    odd(
        "fabric-sockets",
        r"NET/IB ?: Unable to open device (?P<hca>[\w.-]+)",
        "The adapter is there and can't be used: a container has no /dev/infiniband, or the user may not open it.",
        "ls -l /dev/infiniband    # on {node}, inside of the container; Docker: --device=/dev/infiniband",
    ),
    cause(
        "fabric-acs",
        rf"Got completion from peer {_PEER}.*?(?:with error |status=)(?:\w+\()?(?:4|10|11)\b(?:.* hca (?P<hca>\S+))?",
        "The adapter may not read the GPU's memory where it was told to: PCI access control (ACS) or the IOMMU is in"
        " the way.",
        "sudo lspci -vvv | grep ACSCtl    # on {node}; SrcValid+ on a bridge is it; disable ACS, or IOMMU passthrough",
        weight=3,
    ),
    echo(rf"Got completion from peer {_PEER}.*?(?:with error |status=)(?:\w+\()?5\b"),
    cause(
        "fabric-gid-index",
        r"[Cc]all to ibv_modify_qp failed with(?: error)?:? ?(?:22|Invalid argument|101|61|No data available"
        r"|Network is unreachable)"
        r"|ibv_query_gid_index failed|ibv_modify_qp failed.*Invalid argument",
        "RoCE is told an address index (NCCL_IB_GID_INDEX) that this port doesn't have.",
        "show_gids    # on {node}; the index of the RoCE v2 row with an IPv4 address",
        "export NCCL_IB_GID_INDEX=3    # that index; or unset it, NCCL 2.21 and later find it",
        weight=3,
    ),
    cause(
        "fabric-rail-cut",
        r"[Cc]all to ibv_modify_qp failed with(?: error)?:? ?(?:110|Connection timed out)",
        "Two adapters don't hear each other: the rails are not connected, or a port is in another network.",
        "export NCCL_CROSS_NIC=0    # keeps each rail to itself",
        "rping -c -a PEER -C 3 -v    # on {node}, to each address of the peer's adapters",
        weight=3,
    ),
    cause(
        "fabric-mixed",
        r"Attempted to (?:connect|merge) incompatible devices|device is incompatible with the local \[",
        "One end is InfiniBand and the other RoCE: NCCL took a management port for a part of the fabric.",
        "cat /sys/class/infiniband/*/ports/*/link_layer    # on {node} and its peers",
        "export NCCL_IB_HCA=^mlx5_bond_0    # leaves that port out, on all nodes",
        weight=3,
    ),
    cause(
        "fabric-port-missing",
        r"Detected mixed local Net device counts across ranks",
        "A node has fewer RDMA ports up than the others.",
        "ibstat | grep -c Active    # on each node; the one that has fewer needs its cable or adapter looked at",
        weight=3,
    ),
    cause(
        "collective-plugin",
        r"Error: network (?P<plugin>.+?) not found|Failed to (?:find|initialize) (?:any )?(?:NET|network) plugin",
        "NCCL was told to use a network plugin (EFA, OFI, a cloud's own) and can't load it.",
        "ldconfig -p | grep nccl-net; echo $LD_LIBRARY_PATH    # on {node}, where ranks start",
        weight=3,
    ),
    hint(
        "fabric-port-down",
        r"NET/IB ?: No device found",
        "NCCL found no RDMA port that is up.",
        "ibstat    # on {node}; State must be Active",
        refines=(),
    ),
    odd(
        "collective-no-gpudirect",
        r"NET/IB ?: GPU Direct RDMA (?:\(\w+\) )?[Dd]isabled for HCA \d+ '(?P<hca>[^']+)'",
        "Every byte takes a detour through the host's memory; large collectives lose up to half of their rate.",
        "sudo modprobe nvidia_peermem    # on {node}; or a driver and kernel with DMA-BUF",
    ),
    echo(r"socketProgress(?:Opt)?: Connection closed by remote peer|Net ?: Connection closed by remote peer"),
    echo(
        r"Call to (?:recv|send|recvfrom)(?: from| to)? \S+ failed ?: (?:Connection reset|Broken pipe"
        r"|Connection timed)"
    ),
    echo(r"proxy\.cc:\d+ NCCL WARN|Proxy Call to rank \d+ failed|Failed to execute operation \w+ from rank"),
    echo(r"Socket recv failed while polling|Accept failed Software caused"),
)
