"""Faults of a single host: clock, disk, limits, processes, Python, sshd."""
