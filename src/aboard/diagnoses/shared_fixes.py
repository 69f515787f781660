"""Fix templates that several families share."""

from aboard.diagnoses.fixes import Advice

NEAR = Advice("did you mean '{near}'?")
SUGGESTED = {"near": NEAR, "known": Advice("known here: {known:words}")}
CHECK_NETWORK = "{check:shell aboard check NODES --only network    # shows which nodes can't reach each other}"
# Firewall rules that allow a node's peers.
OPEN = "{rules:shell sudo iptables -I INPUT -p tcp -s NETWORK --dport 1024:65535 -j ACCEPT    # on NODE}"
PUT_UP = "sudo ip link set dev {card} up    # on {node}; if that doesn't help, check the NIC's cable and switch port"
SAME_CODE = "aboard check --only software    # is the code the same on all nodes?"
LOGS = "aboard logs {run} --rank {rank}    # the rank's last output"
SLOW_NIC = (
    "sudo ethtool {interface} | grep -E 'Speed|Duplex'    # on {node}; then try a different cable\n"
    "ip -s link show {interface}    # on {node}; do the error or drop counts grow?"
)
