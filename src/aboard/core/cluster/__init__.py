"""Nodes, clusters, host files and node sets."""
