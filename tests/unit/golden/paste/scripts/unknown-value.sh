#!/bin/bash
#SBATCH --nodes=2
srun torchrun --nproc-per-node 4 train.py --output runs/$(date +%s)
