"""Counts what a training step costs, and reports it."""
