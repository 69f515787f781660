"""Runs probes on all nodes and the multi-node probes between them."""
