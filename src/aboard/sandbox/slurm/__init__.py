"""A real Slurm in a practice cluster: munge on every host, slurmctld on n1, slurmd on the nodes."""
