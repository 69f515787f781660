"""Writes, publishes, verifies and restores checkpoints."""
