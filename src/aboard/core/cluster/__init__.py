"""Nodes, clusters, host files, node sets and Slurm allocations."""
