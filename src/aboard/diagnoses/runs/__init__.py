"""Failures of a run: rendezvous, hang, death, slowness."""
