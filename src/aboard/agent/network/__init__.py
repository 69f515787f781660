"""Probes of addresses, connections, path MTU and bandwidth between nodes."""
