"""Slurm's commands: srun as a transport inside a job, and the commands that submit, inspect and cancel jobs."""
