"""Failures of nodes and of the links between them, found before a run."""
