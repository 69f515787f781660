"""Gloo: connections of the mesh, and what ranks say of each other on it."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, wait

_EPHEMERAL = "Gloo connects every pair of ranks on ports of the kernel's choice; only the rendezvous port is open."

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "host-own-name",
        r"connect \[(?P<peer2>127\.[\d.]+|::1)\]:\d+: Connection refused"
        r"|connectFullMesh failed.*remote=\[(?P<peer>127\.[\d.]+|::1)\]|(?:Connection refused|timed out).*"
        r"remote=\[127\.",
        "A node's own name is a loopback address in its /etc/hosts, and it tells its peers to connect there.",
        "getent hosts $(hostname)    # on {node}; 127.0.1.1 must not be there",
        "export GLOO_SOCKET_IFNAME=eth0    # the interface that peers reach, in place of the name",
        weight=3,
    ),
    cause(
        "network-interface-missing",
        r"Unable to find address for: (?P<interface>\S+)|Unable to find interface for: \[(?P<address>[^\]]+)\]",
        "GLOO_SOCKET_IFNAME names an interface that this node doesn't have.",
        "ip -br addr    # on {node}; what is it called there?",
        weight=3,
    ),
    cause(
        "network-ephemeral-refused",
        r"(?:connectFullMesh failed|Gloo"
        r"|connect).*(?:Connection refused).*remote=\[(?P<peer>[\d.a-fA-F:]+)\]:(?P<port>\d+)",
        "A peer told an address on which nothing listens: the wrong interface, or it died before.",
        "ip -br addr    # on {node} and its peers; then GLOO_SOCKET_IFNAME=INTERFACE for all",
        weight=2,
    ),
    # Up to 1.13.
    cause(
        "network-ephemeral-refused",
        r"pair\.cc:\d+\] connect \[(?P<peer>[\d.a-fA-F:]+)\]:(?P<port>\d+): Connection refused",
        "A peer told an address on which nothing listens: the wrong interface, or it died before.",
        "ip -br addr    # on {node} and its peers; then GLOO_SOCKET_IFNAME=INTERFACE for all",
    ),
    cause(
        "network-ephemeral-rejected",
        r"(?:connectFullMesh failed|Gloo|connect).*(?:No route to host"
        r"|unreachable).*remote=\[(?P<peer>[\d.a-fA-F:]+)\]",
        f"{_EPHEMERAL} A firewall says no to the others.",
        "sudo iptables -S | grep -i reject    # on {peer}; open all ports between the nodes",
    ),
    cause(
        "network-ephemeral-dropped",
        r"connectFullMesh failed.*(?:timed out|[Tt]imeout)|Connect timeout \[(?:none|(?P<peer>[\d.a-fA-F:]+))\]"
        r"|Gloo connect.*timed out",
        f"{_EPHEMERAL} Packets to the others vanish. Gloo waits five times its time-out for that, and names no peer.",
        "ss -tno state syn-sent    # on {node}, while it hangs: the address behind the arrow is the blocked one",
        "aboard check --only network    # tries every pair of nodes",
    ),
    # From 2.2 to 2.7 without a word of whom it could not reach.
    cause(
        "log-mesh",
        r"Gloo connectFullMesh failed with",
        "A rank could not connect to a peer, and Gloo doesn't say which: a node's own name is a loopback address, the"
        " wrong interface was taken, or a firewall is between.",
        "getent hosts $(hostname)    # on each node; 127.0.1.1 must not be there",
        "export GLOO_SOCKET_IFNAME=eth0    # the interface that peers reach, on all nodes",
        "aboard check --only network    # tries every pair of nodes",
        weight=2,
    ),
    wait(
        "log-recv-timeout",
        r"Timed out waiting (?P<limit>\d+)ms for (?:recv|send) operation to complete",
        "A peer sent nothing for the whole time-out, and Gloo doesn't say which. It is stopped or stuck"
        " outside of the"
        " collective, its link is down, or large packets vanish on the way (MTU).",
        "ss -tnoi    # on {node}; a Send-Q that grows is the link; ping -M do -s 1472 PEER tells a wrong MTU",
        "ps -o pid,stat,wchan:20,cmd -C python    # on each node; T is stopped, D waits for a dead mount",
        "py-spy dump --pid PID    # of each rank: who is outside of the collective?",
        weight=1,
    ),
    cause(
        "hang-mismatch",
        r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes",
        "Two ranks met in different collectives, or with tensors of different size: their code, config or"
        " data differs.",
        "sha256sum *.py    # on each node, where the script is; they must be the same",
        "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again: torch names the ranks and both collectives",
    ),
    cause(
        "hang-absent",
        r"\[?Ranks? (?P<ranks>[\d, ]+)\]? (?:failed to pass|timed out in) monitoredBarrier",
        "These ranks did not come to the barrier that all others had reached.",
        "py-spy dump --pid PID    # of rank {ranks}, while it hangs: where is it?",
        weight=2,
    ),
    echo(r"(?:Read|Write|Send|Recv) error \[[^\]]*\]:\d+: Connection (?:reset|closed)"),
    echo(r"Connection (?:closed|reset) by (?:remote )?peer(?! ?\(errno)"),
    echo(r"Application timeout caused pair closure|monitoredBarrier, but received errors|Socket closed"),
)
