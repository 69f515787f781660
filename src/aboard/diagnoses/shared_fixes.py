"""Templates that several families share."""

from aboard.diagnoses.fixes import Advice, FixCommand

NEAR = Advice("did you mean '{near}'?")
SUGGESTED = {"near": NEAR, "known": Advice("known here: {known:words}")}
CHECK_NETWORK = FixCommand("{check:shell aboard check NODES --only network    # what can't reach what}")
# The lines that let a node's peers through its firewall.
OPEN = FixCommand("{rules:shell sudo iptables -I INPUT -p tcp -s NETWORK --dport 1024:65535 -j ACCEPT    # on NODE}")
PUT_UP = "sudo ip link set dev {card} up    # on {node}; if that does nothing: its cable, its port at the switch"
SAME_CODE = "aboard check --only software    # is the code the same on all nodes?"
LOGS = "aboard logs {run} --rank {rank}    # what it said last"
SLOW_NIC = FixCommand(
    "sudo ethtool {interface} | grep -E 'Speed|Duplex'    # on {node}; then try another cable\n"
    "ip -s link show {interface}    # on {node}; do errors or drops grow?"
)
