"""Runs as Slurm jobs: submitted, followed and controlled from a login node, and conducted inside a job."""
