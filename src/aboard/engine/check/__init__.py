"""The node check: probes on every node and between nodes, judged into findings."""
