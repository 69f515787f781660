"""Snapshots of a run's nodes, and the evidence and verdicts made from them."""
