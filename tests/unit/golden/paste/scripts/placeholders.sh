#!/bin/bash
#SBATCH --account=<YOUR_ACCOUNT>
#SBATCH --nodes=2
srun torchrun --nproc-per-node 4 train.py
