"""What can go wrong with Slurm: jobs that wait or were refused, steps that do not start, jobs that Slurm ended."""
