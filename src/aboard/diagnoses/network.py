"""Connections between nodes: who can't reach whom, on which ports, by which names and over which interface."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command
from aboard.diagnoses.steps import CHECK, OPEN

_TIMED_OUT = "The client socket has timed out after 600000ms while trying to connect to"
_RETRYING = "connect to 10.0.0.3<42713> returned Connection timed out, retrying (1/34)"
_GLOO = "Connect timeout [none]"
_WHERE = {
    "": ("", "any port"),
    "rendezvous-": (" on the rendezvous port", "the rendezvous port (29500, or MASTER_PORT)"),
    "ephemeral-": (" on ephemeral ports", "the ports that NCCL and gloo pick at random (1024 to 65535)"),
}
_HOW = {
    "dropped": (
        "Connections vanish",
        "A firewall drops the packets, on the node or between, or the machine is not where its address says.",
        (
            "Let the other nodes in: `sudo ufw allow proto tcp from NETWORK to any port {ports}` or"
            " `sudo iptables -I INPUT -p tcp -s NETWORK --dport {ports} -j ACCEPT` on the named node. In a cloud, open"
            " the security group for traffic within the group. If nothing is filtered, `ip route get PEER` shows the"
            " way taken."
        ),
    ),
    "refused": (
        "Connections are refused",
        (
            "Our own agent listens on that port, so a firewall answers for it with a TCP reset, or the address that the"
            " peer uses is another machine's."
        ),
        (
            "Look for the rule: `sudo nft list ruleset | grep -n reset`. Compare the address in the finding with"
            " `ip -br address` on the node. Then allow the ports {ports} from the other nodes."
        ),
    ),
    "rejected": (
        "Connections are rejected",
        "A firewall answers that the host is prohibited (`No route to host`), or the network has no route to it.",
        (
            "`sudo iptables -S INPUT` on the named node shows the REJECT rule, which firewalld and many cloud images"
            " have at the end. Allow the ports {ports} from the other nodes before it; `ip route get PEER` shows a"
            " missing route."
        ),
    ),
}
_NO_CONNECTION = (*(f"network-{scope}{outcome}" for scope in _WHERE for outcome in _HOW), "network-flaky")
# The steps for a connection that fails; which of them, says the shape of the failure.
_OPEN = {
    "look": Command("sudo nft list ruleset | grep -nE 'reject|reset'    # on {where:shell}; who says no?"),
    "in": Command(
        "sudo iptables -I INPUT -p tcp -s {net} --dport {ports} -j ACCEPT    # on {where:shell}; until it boots again\n"
        "# for good: sudo ufw allow proto tcp from {net} to any port {ports}, or sudo firewall-cmd --permanent"
        " --zone=trusted --add-source={net} && sudo firewall-cmd --reload"
    ),
    "out": Command(
        "sudo iptables -I OUTPUT -p tcp -d {net} --dport {ports} -j ACCEPT    # on {where:shell}; until it boots"
        " again\n"
        "# for good: sudo ufw allow out proto tcp from any to {net} port {ports}, or sudo firewall-cmd --permanent"
        " --zone=trusted --add-source={net} && sudo firewall-cmd --reload"
    ),
    "route": Command("ip route get {address}    # on {node}; is it the right network?"),
}
_NAMED = "echo {entry} | sudo tee -a /etc/hosts    # on {where:shell}"
_RENAMED = "sudo sed -i -E {script} /etc/hosts    # on {where:shell}\n" + _NAMED
_CARD = Command(
    "sudo ethtool {interface} | grep -E 'Speed|Duplex'    # on {node}; then try another cable\n"
    "ip -s link show {interface}    # on {node}; do errors or drops grow?"
)


def _connection(scope: str, outcome: str) -> Diagnosis:
    where, ports = _WHERE[scope]
    title, why, mend = _HOW[outcome]
    shows = (_TIMED_OUT,) if scope == "rendezvous-" else (_GLOO, _RETRYING)
    return Diagnosis(
        code=f"network-{scope}{outcome}",
        title=f"{title}{where}",
        symptoms=shows if scope else (_TIMED_OUT, _GLOO, _RETRYING),
        explanation=f"It is about {ports}. {why}",
        remedy=mend.format(ports="29500" if scope == "rendezvous-" else "1024:65535"),
        fixes=_OPEN,
    )


DROPPED = _connection("", "dropped")
REFUSED = _connection("", "refused")
REJECTED = _connection("", "rejected")
RENDEZVOUS_DROPPED = _connection("rendezvous-", "dropped")
RENDEZVOUS_REFUSED = _connection("rendezvous-", "refused")
RENDEZVOUS_REJECTED = _connection("rendezvous-", "rejected")
EPHEMERAL_DROPPED = _connection("ephemeral-", "dropped")
EPHEMERAL_REFUSED = _connection("ephemeral-", "refused")
EPHEMERAL_REJECTED = _connection("ephemeral-", "rejected")

RESET = Diagnosis(
    code="network-reset",
    title="Connections are made and then reset",
    symptoms=("Connection reset by peer", "Read error [10.0.0.3]:64737: Connection reset by peer"),
    explanation="A proxy, an intrusion filter or a full connection table between the nodes ends connections.",
    remedy="Take the nodes' own network out of such filters. `sudo dmesg | grep conntrack` tells whether the table"
    " of connections is full; `sudo sysctl -w net.netfilter.nf_conntrack_max=1048576` makes it larger.",
    fixes={**_OPEN, "let-in": OPEN, "check": CHECK},
)

SILENT = Diagnosis(
    code="network-silent",
    title="Connections are made, and not a byte comes back",
    symptoms=("Timed out waiting 5000ms for recv operation to complete",),
    explanation="Something accepts connections in the node's place and passes nothing on, or packets with data are"
    " lost.",
    remedy="`ip route get PEER` on the node that connects shows the way; look for a proxy or a filter on it.",
    fixes=_OPEN,
)

MTU = Diagnosis(
    code="network-mtu",
    title="Large packets vanish",
    symptoms=(
        "Timed out waiting 5000ms for recv operation to complete",
        "hangs in the first big all-reduce",
    ),
    explanation="An interface sends packets that are larger than a switch, a tunnel or the peer lets through, and"
    " the message that would say so (ICMP fragmentation needed) is filtered. Small messages pass, so logins and the"
    " rendezvous work.",
    remedy="Give all nodes and switch ports of a network the same MTU: `ip link show` on each node,"
    " `sudo ip link set dev eth0 mtu 1500` to change it. `ping -M do -s 1472 PEER` must be answered (8972 for jumbo"
    " frames). Do not filter ICMP type 3.",
    leads_to=(
        "network-loss",
        "network-slow",
        "network-flaky",
    ),
    fixes=Command(
        "ping -M do -c 2 -s 1472 {address}    # on {where:shell}; does a full packet pass?\n"
        "sudo ip link set dev {interface} mtu 1400    # on {where:shell}; or raise the MTU of its switch port"
    ),
)

MTU_DIFFERS = Diagnosis(
    code="network-mtu-differs",
    title="Interfaces send packets of different sizes",
    severity=Severity.INFO,
    symptoms=("mtu 9000 on one node, mtu 1500 on another", "ping: local error: message too long"),
    explanation="The largest packet that an interface sends (its MTU) is not the same on all nodes of one network."
    " TCP agrees on the smaller of its two ends, so this often does no harm; a switch or tunnel between them that"
    " takes less drops what is larger, and RoCE between such ends is slower or fails.",
    remedy="`ip -br link` and `cat /sys/class/net/*/mtu` on each node; `sudo ip link set dev eth1 mtu 9000` to"
    " change one, and the same in netplan, NetworkManager or /etc/network/interfaces. All switch ports between"
    " must take that size, too.",
    leads_to=("network-mtu",),
    fixes=Command(
        "sudo ip link set dev {interface} mtu {mtu}    # on {where:shell}; and where its network is set up, for good"
    ),
)

LINK_DOWN = Diagnosis(
    code="network-link-down",
    title="An interface has no link",
    symptoms=("NO-CARRIER", "state DOWN"),
    explanation="The cable is out, the switch port is off, or the card is broken. Its address stays, so peers try.",
    remedy="Reseat the cable or enable the switch port. `sudo ip link set dev eth1 up` if somebody set it down.",
    leads_to=_NO_CONNECTION,
    fixes=Command(
        "sudo ip link set dev {interface} up    # on {node}; then look at the cable and the switch port\n"
        "cat /sys/class/net/{interface}/operstate    # on {node}; must say up"
    ),
)

UNRESOLVED = Diagnosis(
    code="network-unresolved",
    title="A node does not know a peer's name",
    symptoms=("Could not resolve hostname", "Name or service not known", _TIMED_OUT),
    explanation="The name is in this machine's ssh_config or /etc/hosts, and not in those of the node, or its DNS"
    " doesn't answer. torch says the same sentence as for a firewall.",
    remedy="Add a line `ADDRESS NAME` to /etc/hosts of the named node, or use addresses in aboard.yaml.",
    fixes=Command(_NAMED),
)

PEER_ON_LOOPBACK = Diagnosis(
    code="network-peer-on-loopback",
    title="A node takes a peer for itself",
    symptoms=("connectFullMesh failed … remote=[127.0.0.1]:41896",),
    explanation="A line of its /etc/hosts gives the peer's name to 127.x, often from a copied image.",
    remedy="Give the name its real address in /etc/hosts of the named node.",
    leads_to=_NO_CONNECTION,
    fixes=Command(_RENAMED),
)

NAMES_DIFFER = Diagnosis(
    code="network-names-differ",
    title="A name is not the same machine everywhere",
    severity=Severity.WARN,
    symptoms=("ranks wait for each other although every host is up",),
    explanation="Copies of /etc/hosts have drifted apart, or a DNS answers differently to different nodes.",
    remedy="`getent ahosts NAME` on each node must print the same; correct the odd one.",
    fixes=Command("getent ahosts {name}    # on {where:shell}; from /etc/hosts, or from a DNS?\n" + _RENAMED),
)

PORT_TAKEN = Diagnosis(
    code="network-port-taken",
    title="The rendezvous port is taken",
    symptoms=("The server socket has failed to listen … code: -98, name: EADDRINUSE", "Address already in use"),
    explanation="A rank of an earlier run is still there, or another program uses the port.",
    remedy="`sudo ss -ltnp 'sport = :29500'` names the process. End it if it is a leftover, or set MASTER_PORT.",
    fixes=Command(
        "sudo ss -ltnp sport = :{port}    # on {node}; who has it?\n"
        "sudo fuser -k {port}/tcp    # on {node}; if it is a leftover; else set MASTER_PORT in `env:`"
    ),
)

INTERFACE_MISSING = Diagnosis(
    code="network-interface-missing",
    title="The env names an interface that a node doesn't have",
    symptoms=("Unable to find address for: ib0", "Bootstrap : no socket interface found"),
    explanation="Interfaces are called differently on different machines, and one NCCL_SOCKET_IFNAME was given to all.",
    remedy="Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME per node under `env:`; `ip -br link` lists the names.",
    fixes=Advice("env: {{{variable}: {interface}}}    # in aboard.yaml, for {node}"),
)

INTERFACE = Diagnosis(
    code="network-interface",
    title="There is a choice of interfaces",
    severity=Severity.INFO,
    symptoms=("wrong NIC used", "NET/Socket : Using [0]docker0"),
    explanation="NCCL and gloo take the first interface that looks right, which may be a container bridge or the"
    " slow one.",
    remedy="Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME as proposed: they are what peers really reached.",
    fixes=Advice("{variable}: {interface}    # under `env:` of {nodes} in aboard.yaml"),
)

FLAKY = Diagnosis(
    code="network-flaky",
    title="Connections fail at first and work when tried again",
    severity=Severity.WARN,
    symptoms=("intermittent timeouts",),
    explanation="Packets are lost, or a machine is so busy that it doesn't answer for seconds. Data that came back"
    " only in part within the time counts, too.",
    remedy="The full check measures rate and loss of each link and names the node that is in all bad ones.",
    fixes=Command("aboard check --only network    # measures rate and loss of the links of {nodes:shell}"),
)

SLOW = Diagnosis(
    code="network-slow",
    title="A link is far slower than the others",
    severity=Severity.WARN,
    symptoms=("10x slower than expected", "one slow node"),
    explanation="A link that negotiated a lower speed, a bad cable, a shared uplink or the wrong network.",
    remedy="`ethtool eth0 | grep Speed` on the named node; then another cable, another switch port.",
    leads_to=("network-flaky",),
    fixes=_CARD,
)

LOSS = Diagnosis(
    code="network-loss",
    title="A link loses packets",
    severity=Severity.WARN,
    symptoms=("retransmits grow", "slow in fits and starts"),
    explanation="A bad cable or transceiver, a full switch buffer, or a duplex mismatch.",
    remedy="`ip -s link` on the named node: errors that grow point to the cable, drops to a buffer.",
    leads_to=("network-flaky",),
    fixes=_CARD,
)

SPARSE = Diagnosis(
    code="network-sparse",
    title="Not every pair was tried",
    severity=Severity.INFO,
    symptoms=("a single bad pair may be missed",),
    explanation="Above 64 nodes, each node tries O(log n) peers, in a pattern that connects all of them.",
    remedy="`aboard check --all-pairs` tries every pair.",
    fixes=Command("aboard check --all-pairs"),
)

UNKNOWN_MESH = Diagnosis(
    code="unknown-mesh",
    title="Some connections could not be tried",
    severity=Severity.WARN,
    symptoms=("connections stayed unknown",),
    explanation="A node did not do what the exercise asked of it: too slow, out of memory, or gone.",
    remedy="Run `aboard check --only network` again; if it stays, look at that node's load.",
    fixes=Command("aboard check --only network"),
)
