"""Slurm's own commands, pasted: srun and sbatch with its script."""
