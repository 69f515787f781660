"""Launches a run and supervises it until it ends."""
