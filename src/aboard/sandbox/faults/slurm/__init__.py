"""Faults of a sandbox's Slurm: daemons, node states, munge, prologs, ports."""
