"""A real Slurm in a practice cluster: munge on every host, slurmctld on the head, slurmd on the nodes."""
