"""The supervisor process, which owns the ranks of a node."""
