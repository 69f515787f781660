"""Probes, the facts that they return, and the subjects that group them."""
