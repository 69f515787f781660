"""What several subjects use: differences between nodes, probes by script, fixes."""
