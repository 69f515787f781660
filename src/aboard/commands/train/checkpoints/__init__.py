"""Checkpoints on the nodes: which there are, gathered, shared and resumed from."""
