"""Launches a run and conducts it to its end."""
