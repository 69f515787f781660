"""Slurm's side of a run, without I/O: the nodes of a job, its state in words, and the batch script."""
