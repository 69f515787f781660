"""Slurm: the state of the job and its nodes, as slurmctld reports it."""
