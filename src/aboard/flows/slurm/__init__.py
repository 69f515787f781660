"""Runs as Slurm jobs: submitting, following, controlling from a login node, and the conductor inside a job."""
