"""Connections between nodes: blocked ports, unresolved names, wrong interfaces, and slow or lossy links."""

from typing import Any

from aboard.diagnoses.diagnosis import Diagnosis, RunFailure, remark, warning
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import NCCL_PEER, cause, hint, last_words
from aboard.diagnoses.shared_fixes import SLOW_NIC

_TIMED_OUT = "The client socket has timed out after 600000ms while trying to connect to"
_RETRYING = "connect to 10.0.0.3<42713> returned Connection timed out, retrying (1/34)"
_GLOO = "Connect timeout [none]"
_ADDRESS = r"\[(?P<peer>[0-9a-fA-F.:]+)\]"
_WHERE = {
    "": ("", "all ports"),
    "rendezvous-": (" on the rendezvous port", "the rendezvous port (29500, or MASTER_PORT)"),
    "ephemeral-": (" on ephemeral ports", "the ports that NCCL and Gloo pick at random (1024 to 65535)"),
}
_HOW = {
    "dropped": (
        "connections are dropped",
        (
            "Usually a firewall or a cloud security group drops packets, or the node is on a different network."
            " Ranks time out."
        ),
    ),
    "refused": (
        "connections are refused",
        (
            "Aboard's agent was listening on the port, so either a firewall replied with a TCP reset, or the address"
            " belongs to a different machine."
        ),
    ),
    "rejected": (
        "connections are rejected",
        (
            "Either a firewall rejects the connections (`No route to host`), or there is no route to the node. Ranks"
            " fail to connect, or retry for minutes."
        ),
    ),
}
# torch's message for a connection that failed; the errno follows.
_CLIENT = r"client socket has failed to connect to \[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d+) \(errno: "
_NO_CONNECTION = (*(f"network-{scope}{outcome}" for scope in _WHERE for outcome in _HOW), "network-flaky")
# Fixes of a connection that fails; the rule picks those that fit the failure.
_OPEN = {
    "look": "sudo nft list ruleset | grep -nE 'reject|reset'    # on {where:shell}; find the rule that rejects"
    " connections",
    "in": "sudo iptables -I INPUT -p tcp -s {net} --dport {ports} -j ACCEPT    # on {where:shell}; until the next"
    " reboot\n"
    "# for good: sudo ufw allow proto tcp from {net} to any port {ports}, or sudo firewall-cmd --permanent"
    " --zone=trusted --add-source={net} && sudo firewall-cmd --reload",
    "out": "sudo iptables -I OUTPUT -p tcp -d {net} --dport {ports} -j ACCEPT    # on {where:shell}; until the next"
    " reboot\n"
    "# for good: sudo ufw allow out proto tcp from any to {net} port {ports}, or sudo firewall-cmd --permanent"
    " --zone=trusted --add-source={net} && sudo firewall-cmd --reload",
    "route": "ip route get {address}    # on {node}; does the route use the right network?",
    "let-in": "{rules:shell}",
    "check": "{check:shell}",
}
_NAMED = "echo {entry} | sudo tee -a /etc/hosts    # on {where:shell}"
_RENAMED = "sudo sed -i -E {script} /etc/hosts    # on {where:shell}\n" + _NAMED
_NOBODY_LISTENS = (
    "Nothing is listening at the address that the peer announced. The address may belong to an interface that peers"
    " can't reach or to a container's own network, or the peer may already have died."
)


def _declare_connection(scope: str, outcome: str, *, symptoms: tuple[str, ...] = (), **more: Any) -> RunFailure:
    """The diagnosis of an outcome on these ports; `logged` are further fixes, for its patterns."""
    where, ports = _WHERE[scope]
    title, why = _HOW[outcome]
    common = () if scope == "rendezvous-" else (_GLOO, _RETRYING)
    return RunFailure(
        code=f"network-{scope}{outcome}",
        restart=FailureClass.UNKNOWN,
        title=f"{title}{where}",
        symptoms=(*symptoms, *common) if scope == "ephemeral-" else (_TIMED_OUT, *common),
        explanation=f"{why} This affects {ports}.",
        fixes={**_OPEN, **more.pop("logged", {})},
        **more,
    )


DROPPED, REFUSED, REJECTED = (_declare_connection("", outcome) for outcome in _HOW)
RENDEZVOUS_DROPPED = _declare_connection(
    "rendezvous-",
    "dropped",
    log_fix="sudo iptables -S    # on {peer}; then open port {port} to the other nodes",
    patterns=hint(_CLIENT + "110", refines=("log-store-unreachable",)),
)
RENDEZVOUS_REFUSED = _declare_connection(
    "rendezvous-",
    "refused",
    log_fix="ss -ltn | grep {port}    # on {peer}; is rank 0 listening? If not, its own log shows why it died",
    patterns=hint(
        _CLIENT + "111",
        "The node responds, but nothing is listening on the port. Rank 0 may never have started, or the address may"
        " belong to a different node.",
        refines=("log-store-unreachable",),
    ),
)
RENDEZVOUS_REJECTED = _declare_connection(
    "rendezvous-",
    "rejected",
    log_fix="sudo iptables -S | grep -i reject    # on {peer}; then open the port to the other nodes",
    patterns=hint(_CLIENT + "1(?:13|01)", refines=("log-store-unreachable",)),
)
EPHEMERAL_DROPPED = _declare_connection(
    "ephemeral-",
    "dropped",
    logged={
        "waiting": "ss -tno state syn-sent    # on {node}, while it tries to connect; the peer listed is blocked\n"
        "aboard check --only network    # tests every pair of nodes"
    },
    log_fix="sudo iptables -S    # on {peer}; open all ports between the nodes\n"
    "aboard check --only network    # tests every pair of nodes",
    patterns=(
        cause(
            rf"[Cc]onnect to {NCCL_PEER} (?:failed ?:|returned) ?(?:\d+\()?(?:Connection timed out"
            r"|Operation now in progress)"
            rf"|connect to {NCCL_PEER.replace('peer', 'peer2').replace('port', 'port2')}.*(?:exceeded|timed out)",
            precedence=600,
        ),
        cause(r"connect (?:to \S+ )?returned Connection timed out, retrying \((?P<try>\d+)/(?P=try)\)", fix="waiting"),
        cause(
            r"connectFullMesh failed.*(?:timed out|[Tt]imeout)|Connect timeout \[(?:none|(?P<peer>[\d.a-fA-F:]+))\]"
            r"|Gloo connect.*timed out",
            "Gloo connects every pair of ranks on ephemeral ports, but only the rendezvous port is open; packets to"
            " other ports are dropped. Gloo waits five times its timeout for the connection, and does not say which"
            " peer it is waiting for.",
            fix="waiting",
            weight=2,
        ),
        last_words(rf"(?s)connectFullMesh failed.*?remote={_ADDRESS}"),
    ),
)
EPHEMERAL_REFUSED = _declare_connection(
    "ephemeral-",
    "refused",
    symptoms=("Gloo connectFullMesh failed with … SO_ERROR: Connection refused, remote=[10.0.0.2]:28048",),
    logged={
        "nccl": "ip -br addr    # on {peer}; set NCCL_SOCKET_IFNAME to the interface on the network that all nodes"
        " share\n"
        "aboard check --only network    # tests every pair of nodes",
        "nccl-peers": "ip -br addr    # on the peers of {node}; set NCCL_SOCKET_IFNAME to the interface on the"
        " network that all"
        " nodes share",
        "gloo": "ip -br addr    # on {node} and its peers; then set GLOO_SOCKET_IFNAME=INTERFACE on all nodes",
    },
    patterns=(
        cause(
            rf"[Cc]onnect to {NCCL_PEER} (?:failed ?:|returned) ?(?:\d+\()?(?:Connection refused"
            r"|Software caused connection abort)",
            _NOBODY_LISTENS,
            fix="nccl",
            weight=2,
        ),
        cause(
            r"connect (?:to \S+ )?returned Connection refused, retrying \((?P<try>\d+)/(?P=try)\)",
            _NOBODY_LISTENS,
            fix="nccl-peers",
            weight=2,
        ),
        cause(
            r"(?:connectFullMesh failed|Gloo|connect).*Connection refused"
            r".*remote=\[(?P<peer>[\d.a-fA-F:]+)\]:(?P<port>\d+)"
            # Up to 1.13.
            r"|pair\.cc:\d+\] connect \[(?P<peer2>[\d.a-fA-F:]+)\]:(?P<port2>\d+): Connection refused",
            _NOBODY_LISTENS,
            fix="gloo",
            weight=2,
        ),
        last_words(rf"(?s)\A(?=.*(?i:connection refused)).*?connectFullMesh failed.*?remote={_ADDRESS}"),
    ),
)
EPHEMERAL_REJECTED = _declare_connection(
    "ephemeral-",
    "rejected",
    logged={
        "peers": "sudo iptables -S | grep -i reject    # on the peers of {node}\n"
        "aboard check --only network    # tests every pair of nodes"
    },
    log_fix="sudo iptables -S | grep -i reject    # on {peer}; firewalld: firewall-cmd --list-all\n"
    "aboard check --only network    # tests every pair of nodes",
    patterns=(
        # socketStartConnect up to 2.23, socketPollConnect and `returned 113(No route to host)` in 2.21 to 2.23.
        cause(
            rf"[Cc]onnect to {NCCL_PEER} (?:failed ?:|returned) ?(?:\d+\()?(?:No route to host|Network is unreachable)"
        ),
        # From 2.24 on each of 34 tries (NCCL_SOCKET_RETRY_CNT) is logged; the last one is final.
        cause(r"connect (?:to \S+ )?returned No route to host, retrying \((?P<try>\d+)/(?P=try)\)", fix="peers"),
        cause(
            r"(?:connectFullMesh failed|Gloo|connect).*(?:No route to host"
            r"|unreachable).*remote=\[(?P<peer>[\d.a-fA-F:]+)\]",
            weight=2,
        ),
    ),
)

RESET = RunFailure(
    code="network-reset",
    restart=FailureClass.TRANSIENT,
    title="connections are established and then reset",
    symptoms=("Connection reset by peer", "Read error [10.0.0.3]:64737: Connection reset by peer"),
    explanation="Something on the path closes the connections: usually a proxy, an intrusion filter, or a full"
    " connection tracking table (`sudo dmesg | grep conntrack`).",
    remedy="Exempt the nodes from proxies and filters. To enlarge the connection tracking table, run `sudo sysctl -w"
    " net.netfilter.nf_conntrack_max=1048576`.",
    fixes=_OPEN,
    patterns=last_words(
        r"(?:Connection closed by peer |(?=\[[^]]+\]:\d+: (?:Connection reset by peer|Broken pipe)))" + _ADDRESS
    ),
)

SILENT = Diagnosis(
    code="network-silent",
    title="connections are established, but no data comes back",
    symptoms=("Timed out waiting 5000ms for recv operation to complete",),
    explanation="Something on the path, such as a proxy or a filter, accepts connections in place of the node but"
    " forwards no data.",
    fixes=_OPEN,
)

MTU = Diagnosis(
    code="network-mtu",
    title="large packets are lost",
    symptoms=("Timed out waiting 5000ms for recv operation to complete", "hangs in the first big all-reduce"),
    explanation="Packets above some size are dropped. Usually the MTU differs along the path, and the ICMP type 3"
    " messages that would report this are filtered. A run starts normally and hangs in its first large all-reduce.",
    leads_to=("network-loss", "network-slow", "network-flaky"),
    fixes="ping -M do -c 2 -s 1472 {address}    # on {where:shell}; does a full-size packet pass? (-s 8972 for jumbo"
    " frames)\n"
    "sudo ip link set dev {interface} mtu 1400    # on {where:shell}; or raise the MTU of its switch port",
)

MTU_DIFFERS = remark(
    code="network-mtu-differs",
    title="interfaces have different MTUs",
    symptoms=("mtu 9000 on one node, mtu 1500 on another", "ping: local error: message too long"),
    explanation="TCP uses the smaller MTU of its two ends, so different MTUs are often harmless. However, packets that"
    " are too large for a switch or a tunnel are dropped silently, and RoCE between nodes with"
    " different MTUs is slower or fails.",
    leads_to=("network-mtu",),
    fixes="sudo ip link set dev {interface} mtu {mtu}    # on {where:shell}; set it in the network"
    " configuration too, or a reboot undoes it",
)

LINK_DOWN = Diagnosis(
    code="network-link-down",
    title="an interface has no link",
    symptoms=("NO-CARRIER", "state DOWN"),
    explanation="The cable may be unplugged, the switch port may be off, or the NIC may be broken. The interface keeps"
    " its address, so peers still try to connect.",
    leads_to=_NO_CONNECTION,
    fixes="sudo ip link set dev {interface} up    # on {node}; then check the cable and the switch port\n"
    "cat /sys/class/net/{interface}/operstate    # on {node}; must print up",
)

UNRESOLVED = Diagnosis(
    code="network-unresolved",
    title="a node can't resolve a peer's name",
    symptoms=("Could not resolve hostname", "Name or service not known", _TIMED_OUT),
    explanation="The name is in this machine's ssh_config or /etc/hosts but not in the node's, or the node's DNS does"
    " not respond. torch prints the same message as when a firewall blocks the connection.",
    fixes=_NAMED,
    log_fix="getent hosts {peer}    # on {node}; then add the name to /etc/hosts, or use the peer's address",
    patterns=hint(
        r"The (?:IPv4 )?network addresses of \((?P<peer>[\w.:-]+), (?P<port>\d+)\) cannot be retrieved",
        "The node that is trying to connect can't resolve the peer's name.",
        refines=("log-store-unreachable",),
    ),
)

PEER_ON_LOOPBACK = Diagnosis(
    code="network-peer-on-loopback",
    title="a node resolves a peer's name to itself",
    symptoms=("connectFullMesh failed … remote=[127.0.0.1]:41896",),
    explanation="The node's /etc/hosts maps the peer's name to 127.x, often because the file came with a copied image."
    " The node would connect to itself instead of the peer, and wait.",
    leads_to=_NO_CONNECTION,
    fixes=_RENAMED,
)

NAMES_DIFFER = warning(
    code="network-names-differ",
    title="a name resolves to different machines on different nodes",
    symptoms=("ranks wait for each other although every host is up",),
    explanation="Copies of /etc/hosts may have diverged, or DNS may reply differently to different nodes. The nodes"
    " then can't connect to each other, or connect over different networks.",
    fixes="getent ahosts {name}    # on {where:shell}; is the address from /etc/hosts or from DNS?\n" + _RENAMED,
)

PORT_TAKEN = RunFailure(
    code="network-port-taken",
    restart=FailureClass.TRANSIENT,
    title="the rendezvous port is in use",
    symptoms=("The server socket has failed to listen … code: -98, name: EADDRINUSE", "Address already in use"),
    explanation="Usually a rank from an earlier run is still running, another program is using the port, or one"
    " torchrun per GPU was started instead of one per node.",
    fixes={
        "holder": "sudo ss -ltnp sport = :{port}    # on {node}; which process uses the port?\n"
        "sudo fuser -k {port}/tcp    # on {node}; if the process is a leftover; otherwise set MASTER_PORT in `env:`",
        "run": "aboard stop {run}    # only if you no longer need that run; or set another MASTER_PORT",
    },
    log_fix="sudo ss -ltnp | grep -w -e :29500 -e :{port}    # on {node}; which process uses the port?",
    patterns=cause(
        r"server socket has failed to (?:listen|bind).*(?:EADDRINUSE|errno: 98|[Aa]ddress already in use)"
        r"|EADDRINUSE|OSError: \[Errno 98\]|port: (?P<port>\d+).*EADDRINUSE"
    ),
)

INTERFACE_MISSING = Diagnosis(
    code="network-interface-missing",
    title="an environment variable specifies an interface that a node doesn't have",
    symptoms=("Unable to find address for: ib0", "Bootstrap : no socket interface found"),
    explanation="Interface names differ between machines. If the node doesn't have the interface, NCCL fails with"
    " `no socket interface found`, and Gloo with `Unable to find address for`.",
    fixes={
        "": Advice(
            "env: {{{variable}: {interface}}}    # in aboard.yaml, for {node}; if a pasted command or .deepspeed_env"
            " sets it, change it there"
        ),
        "nccl": "ip -br addr    # on {node}; lists the node's interfaces\n"
        "env | grep NCCL_SOCKET_IFNAME    # on {node}; =eth0 is exact, eth is a prefix, ^docker excludes",
        "gloo": "ip -br addr    # on {node}; lists the node's interfaces",
    },
    patterns=(
        cause(
            r"[Bb]ootstrap ?: no socket interface found|NET/Socket ?: [Nn]o interface found|no socket interface found"
            r"|No usable listening interface found",
            "NCCL_SOCKET_IFNAME specifies an interface that this node doesn't have, or no interface has an address.",
            fix="nccl",
        ),
        cause(
            r"Unable to find address for: (?P<interface>\S+)|Unable to find interface for: \[(?P<address>[^\]]+)\]",
            "GLOO_SOCKET_IFNAME specifies an interface that this node doesn't have.",
            fix="gloo",
        ),
    ),
)

INTERFACE = remark(
    code="network-interface",
    title="nodes have several interfaces that NCCL and Gloo could use",
    symptoms=("wrong NIC used", "NET/Socket : Using [0]docker0"),
    explanation="Unless an environment variable names an interface, NCCL and Gloo use the first one that looks"
    " right. It may be a container bridge, or belong to a slow network.",
    fixes=Advice("{variable}: {interface}    # under `env:` of {nodes} in aboard.yaml"),
)

FLAKY = warning(
    code="network-flaky",
    title="connections fail at first and succeed on retry",
    symptoms=("intermittent timeouts",),
    explanation="Packets may be lost, or a machine may be too busy to respond for several seconds. A collective is only"
    " as fast as its slowest link.",
    fixes="aboard check --only network    # measures speed and packet loss on the links of {nodes:shell}",
)

SLOW = warning(
    code="network-slow",
    title="a link is far slower than the others",
    symptoms=("10x slower than expected", "one slow node"),
    explanation="Usually the link negotiated a lower speed, a cable is bad, an uplink is shared, or traffic uses the"
    " wrong network. A collective is only as fast as its slowest link.",
    leads_to=("network-flaky",),
    fixes=SLOW_NIC,
)

LOSS = warning(
    code="network-loss",
    title="a link loses packets",
    symptoms=("retransmits grow", "slow in fits and starts"),
    explanation="The usual causes are a bad cable or transceiver (the error counters grow), a full switch buffer (the"
    " drop counters grow), or a duplex mismatch.",
    leads_to=("network-flaky",),
    fixes=SLOW_NIC,
)

SPARSE = remark(
    code="network-sparse",
    title="not every pair of nodes was tested",
    symptoms=("a single bad pair may be missed",),
    explanation="With more than 64 nodes, testing all pairs would take too long. Instead, each node tests O(log n)"
    " peers: those 1, 2, 4, … places away in the list of nodes.",
    fixes="aboard check --all-pairs",
)

UNKNOWN_MESH = warning(
    code="unknown-mesh",
    title="some connections could not be tested",
    symptoms=("connections of n3 are unknown",),
    explanation="A node did not complete its part of the test. It may be too slow, out of memory, or no longer"
    " reachable.",
    fixes="aboard check --only network",
)
