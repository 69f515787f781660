"""Recreates the head's Python environment on the nodes."""
