"""The long version of each fabric code: how it shows, why it happens, how to mend it."""

from aboard.diagnoses import Diagnosis, Severity


def _story(
    code: str, title: str, shows: tuple[str, ...], why: str, mend: str, leads_to: tuple[str, ...] = ()
) -> Diagnosis:
    """All warn at most: these rules were proven on recordings, not on adapters."""
    return Diagnosis(
        code=code, title=title, severity=Severity.WARN, symptoms=shows, explanation=why, remedy=mend, leads_to=leads_to
    )


STORIES = (
    _story(
        "fabric-sockets",
        "this node would train over TCP sockets instead of RDMA",
        ("NET/IB : No device found.", "Using network Socket", "NET/Socket : Using [0]eth0"),
        "NCCL skips every adapter port that is not ACTIVE, and when none is left it takes TCP, with one line in a log"
        " that is off by default. When its peers use RDMA the ranks then don't find each other; when all nodes fall"
        " back the run goes on, many times slower.",
        "Look at the ports with `ibstat` or `cat /sys/class/infiniband/*/ports/*/state`. DOWN with Polling is a cable"
        " or the switch's port; INIT with LinkUp is a missing subnet manager (`sudo sminfo`). If there is no adapter,"
        " load its driver with `sudo modprobe mlx5_ib`. Look also for NCCL_IB_DISABLE and NCCL_IB_HCA in the"
        " environment and in /etc/nccl.conf. In a container, bind /dev/infiniband.",
    ),
    _story(
        "fabric-port-down",
        "an adapter's port is not ACTIVE",
        ("NET/IB : No device found.", "Port state: Down", "phys_state: Polling", "mlx5_3: port 1 DOWN"),
        "The port has no link (a cable, a transceiver, a port that is off at the switch), or it has one and no subnet"
        " manager has made it ACTIVE. NCCL leaves it out without a word.",
        "`sudo mlxlink -d mlx5_3` says why there is no link. Take it down and up with `sudo mlxlink -d mlx5_3 -a TG`,"
        " reseat the cable, try another one, then another port of the switch. With LinkUp and INIT look for the subnet"
        " manager: `sudo sminfo`, and `systemctl status opensm` on the machine that runs it.",
    ),
    _story(
        "fabric-port-missing",
        "a node has fewer RDMA ports than the others",
        ("Detected mixed local Net device counts across ranks", "mlx5_core: Cannot find PCI device"),
        "An adapter fell off the PCI bus, its firmware didn't start, or its driver failed for one card. NCCL 2.30"
        " refuses nodes with unequal numbers of adapters; earlier ones share the others, and are slow.",
        "Compare `lspci | grep -i mellanox` with another node, and read `sudo dmesg | grep mlx5`. A reboot, better a"
        " cold one, brings most of them back. To train meanwhile: leave the node out, or set NCCL_IB_HCA on all nodes"
        " to the adapters that all of them have.",
    ),
    _story(
        "fabric-rate",
        "a link runs at less than its rate",
        ("rate: 100 Gb/sec (1X NDR)", "200 Gb/sec (4X HDR)", "busbw is half of what it should be"),
        "Two ends agree on the best rate that cable and transceivers allow when the link comes up. A dirty or bent"
        " cable, one of a lower class, or old firmware gives a link that works with fewer lanes or a slower mode.",
        "`sudo mlxlink -d mlx5_3 -m` shows lanes, errors and the cable's own data. Reset the link, clean or replace"
        " the cable, and compare firmware with `ibv_devinfo | grep fw_ver`. Look at the switch's end too.",
    ),
    _story(
        "fabric-flaps",
        "a link goes down again and again, or has many errors",
        (
            "Got completion from peer with error 12, opcode 0, len 0, vendor err 129",
            "Got completion from peer with status=12 opcode=0",
            "transport retry counter exceeded",
        ),
        "Error 12 (RETRY_EXC) means that a packet was not answered in spite of all retries: the link was away for"
        " seconds, or the peer had died. The kernel counts how often each link went down since the last boot.",
        "Reseat or replace the cable of the named adapter, and look at the switch's log. Set the counters to zero"
        " with `sudo perfquery -R`, and look again after an hour. `NCCL_IB_TIMEOUT: '22'` in `env:` outlasts short"
        " flaps, and makes real failures known later.",
    ),
    _story(
        "fabric-gid-none",
        "a RoCE port has no RoCE v2 address",
        ("ibv_modify_qp failed with 22 Invalid argument", "ibv_modify_qp failed with 110 Connection timed out"),
        "A RoCE port's addresses (GIDs) come from the IP addresses of its network interface. Without one there is only"
        " a link-local entry, or only RoCE v1, which no router forwards.",
        "Give the interface an address like on the other nodes (`ip -br addr` shows them), and look at"
        " /sys/class/infiniband/*/ports/1/gid_attrs/types for `RoCE v2`. `sudo cma_roce_mode -d mlx5_0 -p 1 -m 2`"
        " makes v2 the default. If NCCL shouldn't use the port at all: `NCCL_IB_HCA: '^=mlx5_0'`.",
    ),
    _story(
        "fabric-gid-index",
        "the RoCE v2 address has another GID index than NCCL is told, or than on the other nodes",
        ("ibv_modify_qp failed with 22 Invalid argument", "NCCL_IB_GID_INDEX set by environment to 3"),
        "The kernel fills the table of addresses in the order in which they were configured, so a VLAN, a second"
        " address or a restarted network service shifts the index on one node. NCCL before 2.21 takes one index for"
        " all, 0 if it isn't told; later ones look for RoCE v2 by themselves unless the variable is set.",
        "With NCCL 2.21 or later unset NCCL_IB_GID_INDEX (or set it to -1). Else set it for each node in `env:` of"
        " aboard.yaml to the index that the finding names; `show_gids` lists them.",
    ),
    _story(
        "fabric-mixed",
        "InfiniBand and RoCE ports are mixed",
        ("Attempted to connect incompatible devices", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:1/RoCE"),
        "Adapters of one kind can be InfiniBand or Ethernet, and many servers have a fast InfiniBand card for each GPU"
        " and one Ethernet card of the same maker for everything else. NCCL takes all of them for RDMA.",
        "Exclude the odd ones: `NCCL_IB_HCA: '^=mlx5_bond_0'` in `env:` of aboard.yaml; `^` refuses and `=` wants the"
        " name whole. If a card is in the wrong mode: `sudo mlxconfig -d mlx5_0 set LINK_TYPE_P1=1`, and reboot.",
    ),
    _story(
        "fabric-plugin",
        "NCCL's network plugin is not found",
        (
            "NET/Plugin: Could not find: libnccl-net.so",
            "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
            "NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so",
            "Using network Socket",
        ),
        "Some adapters, as Amazon's EFA, are reached through a library that NCCL loads by its name. It isn't"
        " installed, or lies in a folder that is in LD_LIBRARY_PATH of your shell and not in that of a rank. NCCL then"
        " takes TCP sockets, many times slower, with one line in a log that is off by default.",
        "Install the plugin as on the other nodes (for EFA the package aws-ofi-nccl, which comes with the EFA"
        " installer, in /opt/amazon/ofi-nccl), and put its folder into LD_LIBRARY_PATH, under `setup:` in aboard.yaml."
        " NCCL_DEBUG=INFO must then say `NET/Plugin: Loaded net plugin` and not `Using network Socket`."
        " `NCCL_NET_PLUGIN: none` says that none is wanted.",
    ),
    _story(
        "fabric-rail-cut",
        "two nodes don't hear each other on one rail",
        ("ibv_modify_qp failed with 110 Connection timed out", "Call to ibv_modify_qp failed with 110"),
        "Each adapter has a network of its own, a rail. On one of them an echo doesn't come back, while it does on the"
        " others: a cable in the wrong port, a VLAN that is missing at the switch, or an address of another rail.",
        "`ping -I OWN_ADDRESS PEER_ADDRESS` on both nodes, `ip -br addr` to compare which address is on which"
        " interface, `ip neigh` for FAILED entries. Correct the cable or the switch port. Until then leave the rail out"
        " on all nodes: `NCCL_IB_HCA: '^=mlx5_3'` in `env:` of aboard.yaml.",
    ),
    _story(
        "fabric-rails",
        "rails are not connected with each other",
        ("ibv_modify_qp failed with 110 Connection timed out", "NCCL_CROSS_NIC set by environment to 1"),
        "Many clusters keep the networks of the adapters apart: adapter 0 of all nodes on one switch, adapter 1 on the"
        " next. A ring of NCCL's that leaves a node by another adapter than it comes in by then finds no way, and waits"
        " until it times out. NCCL mostly stays on a rail by itself; NCCL_CROSS_NIC=1 makes it change.",
        "`NCCL_CROSS_NIC: '0'` in `env:` of aboard.yaml forbids it. If the rails should be connected, look at the"
        " routes: `ip route get PEER_ADDRESS from OWN_ADDRESS`.",
    ),
    _story(
        "fabric-hca-absent",
        "NCCL_IB_HCA names an adapter that the node hasn't got",
        ("NCCL_IB_HCA set to mlx5_3", "NET/IB : No device found."),
        "Adapters are numbered in the order in which the kernel finds them; a card that is gone, or another driver,"
        " gives the others new names, and a list made for one node doesn't fit the next.",
        "Set NCCL_IB_HCA for each node in `env:` of aboard.yaml, or use a prefix (`mlx5`) or a refusal"
        " (`^=mlx5_bond_0`), which fit all. With rdma-core's persistent names (ibp3s0) they don't change any more.",
    ),
    _story(
        "fabric-no-gpudirect",
        "adapters can't read the GPUs' memory",
        ("GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "NET/IB : GPU Direct RDMA Disabled"),
        "The module nvidia_peermem connects the GPU's driver with the adapter's. It isn't loaded, or was built against"
        " another version. NVIDIA's open driver on Linux 5.12 or later does without it, by DMA-BUF.",
        "`sudo modprobe nvidia_peermem`; if that fails with `Invalid argument`, install the adapter's driver first and"
        " the GPU's driver after it. Keep it with a line in /etc/modules-load.d. Afterwards NCCL_DEBUG=INFO shows"
        " `GPU Direct RDMA Enabled` and `GDRDMA` in its channels.",
    ),
    _story(
        "fabric-acs",
        "PCI switches send traffic between cards through the CPU",
        ("Got completion with error 4, opcode 32675, len 0, vendor err 81", "status=4", "LOC_PROT_ERR"),
        "Access Control Services make each packet from one PCI card to another go up to the CPU. Virtual machines need"
        " that; on bare metal it makes GPUDirect slow, and sometimes wrong.",
        "`sudo lspci -vvv | grep ACSCtl` shows SrcValid+ where it is on. Turn it off for every bridge with"
        " `sudo setpci -s ADDRESS ECAP_ACS+0x6.w=0000` after each boot, or for good in the BIOS, with IO"
        " virtualization (VT-d, AMD-Vi). In a virtual machine leave it on, and turn ATS on in the adapter instead.",
    ),
    _story(
        "fabric-memlock",
        "ranks may lock too little memory for RDMA",
        (
            "Call to ibv_reg_mr failed with error Cannot allocate memory",
            "Call to ibv_create_cq failed with error Cannot allocate memory",
        ),
        "RDMA hands memory to the adapter, so it must not be moved: it is locked, and the kernel limits how much of it"
        " a user may lock. What counts is the limit of a process started by sshd or slurmd, not that of your terminal.",
        "`echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-memlock.conf` and log in anew; for Slurm"
        " `LimitMEMLOCK=infinity` in slurmd's service file; for Docker `--ulimit memlock=-1`.",
    ),
    _story(
        "fabric-nccl-settings",
        "NCCL is told different things on different nodes",
        (
            "NCCL_ALGO set by environment to Ring",
            "Using network IB",
            "Using network Socket",
            "stuck at the first all-reduce",
        ),
        "NCCL reads variables and /etc/nccl.conf on each node by itself. Ranks that choose another network, algorithm"
        " or protocol than their peers wait for something that never comes.",
        "Write the settings once, in `env:` of aboard.yaml, which wins over both, and take them out of dot files and"
        " /etc/nccl.conf, or copy that file to all nodes. In a container bind it: `--bind /etc/nccl.conf`.",
        leads_to=("software-variable",),
    ),
    _story(
        "fabric-topology",
        "a topology file is missing or differs",
        (
            "NCCL_TOPO_FILE set by environment to /etc/crusoe/nccl_topo/h100-80gb-sxm-ib.xml",
            "Could not open XML topology file",
        ),
        "In virtual machines NCCL can't see which adapter is near which GPU, so clouds ship a file that says so. A node"
        " without it pairs them by chance, which costs half the bandwidth.",
        "Copy the file from a node that has it, or install the cloud's package for it. Bind its folder into"
        " containers, for example `--bind /etc/crusoe`. On bare metal unset NCCL_TOPO_FILE.",
    ),
)
