"""Templates that several families share."""

from aboard.diagnoses.fixes import Command

CHECK = Command("{check:shell}")
# The lines that let a node's peers through its firewall.
OPEN = Command("{rules:shell}")
PUT_UP = Command(
    "sudo ip link set dev {card} up    # on {node}; if that does nothing: its cable, its port at the switch"
)
SAME_CODE = "aboard check --only software    # is the code the same on all nodes?"
LOGS = "aboard logs {run} --rank {rank}    # what it said last"
SLOW_NIC = Command(
    "sudo ethtool {interface} | grep -E 'Speed|Duplex'    # on {node}; then try another cable\n"
    "ip -s link show {interface}    # on {node}; do errors or drops grow?"
)
