"""The run directory: written by the conductor, read by logs, status and why. Data that can't be written is counted."""
