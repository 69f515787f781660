"""Reads processes, sockets, stacks and logs on a node."""
